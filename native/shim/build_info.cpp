// How this library was made, as JSON: for `doctor`, bench rows and saved state.
#include "handles.h"

#include "json.h"
#include "turbo_build.h"

#include "ggml.h"

#include "turbo/cpu/codec.h"
#include "turbo/types.h"

#include <cstdio>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace codebooks {
#include "turbo/codebooks.inc"
}  // namespace codebooks

namespace {

std::vector<std::string> split(const std::string & text, char separator) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) {
        if (!part.empty()) {
            parts.push_back(part);
        }
    }
    return parts;
}

std::vector<std::string> kv_type_names() {
    std::vector<std::string> names;
    for (int32_t i = 0; i < turbo_kv_type_count(); i++) {
        turbo_kv_type type;
        if (turbo_kv_type_get(i, &type) == TURBO_OK && std::string(type.name) == type.family) {
            names.push_back(type.name);
        }
    }
    return names;
}

std::string hex(unsigned long long value) {
    char text[17];
    snprintf(text, sizeof(text), "%016llx", value);
    return text;
}

std::string build_info() {
#if defined(GGML_CUDA_USE_GRAPHS)
    const bool cuda_graphs = true;
#else
    const bool cuda_graphs = false;
#endif
    const common_json info = {
        { "abi", TURBO_ABI },
        { "llama_version", llama_version() },
        { "upstream_commit", TURBO_UPSTREAM_COMMIT },
        { "digest", TURBO_BUILD_DIGEST },
        { "tree_digest", TURBO_TREE_DIGEST },
        { "backend", TURBO_BACKEND_NAME },
        { "cuda_architectures", split(TURBO_CUDA_ARCHITECTURES, ' ') },
        { "cuda_graphs", cuda_graphs },
        { "cpu_features", split(turbo_cpu_feature_list(false), ',') },
        { "simd", turbo_simd_name() },
        { "kv_types", kv_type_names() },
        { "kv_format", TURBO_FORMAT },
        { "codebook_hash", hex(TURBO_CODEBOOK_HASH) },
        { "compiler", __VERSION__ },
    };
    return info.dump();
}

}  // namespace

const char * turbo_build_info(void) {
    static std::string text;
    const int32_t status = turbo_guard("build_info", [] {
        static std::once_flag once;
        std::call_once(once, [] { text = build_info(); });
        return (int32_t) TURBO_OK;
    });
    return status == TURBO_OK ? text.c_str() : "{}";
}
