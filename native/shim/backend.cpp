// Starting the library, and what the machine offers: devices and CPU features.
#include "handles.h"
#include "log_ring.h"

#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"

#include <mutex>
#include <string>

#if defined(__x86_64__) || defined(_M_X64)
#    include <cpuid.h>
#endif

namespace {

// A feature this build was compiled with, and whether this CPU has it.
struct cpu_feature {
    const char * name;
    bool built;
    bool present;
};

#if defined(__x86_64__) || defined(_M_X64)
// Asked of the processor itself: clang before version 15 does not know this feature by name.
bool cpu_has_f16c() {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

const cpu_feature * cpu_features(size_t * n) {
    static const cpu_feature features[] = {
        { "AVX", ggml_cpu_has_avx() != 0, __builtin_cpu_supports("avx") != 0 },
        { "F16C", ggml_cpu_has_f16c() != 0, cpu_has_f16c() },
        { "AVX2", ggml_cpu_has_avx2() != 0, __builtin_cpu_supports("avx2") != 0 },
        { "FMA", ggml_cpu_has_fma() != 0, __builtin_cpu_supports("fma") != 0 },
        { "BMI2", ggml_cpu_has_bmi2() != 0, __builtin_cpu_supports("bmi2") != 0 },
        { "AVX512F", ggml_cpu_has_avx512() != 0, __builtin_cpu_supports("avx512f") != 0 },
        { "AVX512-VBMI", ggml_cpu_has_avx512_vbmi() != 0, __builtin_cpu_supports("avx512vbmi") != 0 },
        { "AVX512-VNNI", ggml_cpu_has_avx512_vnni() != 0, __builtin_cpu_supports("avx512vnni") != 0 },
        { "AVX512-BF16", ggml_cpu_has_avx512_bf16() != 0, __builtin_cpu_supports("avx512bf16") != 0 },
    };
    *n = sizeof(features) / sizeof(features[0]);
    return features;
}
#else
const cpu_feature * cpu_features(size_t * n) {
    static const cpu_feature features[] = {
        { "NEON", ggml_cpu_has_neon() != 0, ggml_cpu_has_neon() != 0 },
    };
    *n = sizeof(features) / sizeof(features[0]);
    return features;
}
#endif

int32_t device_kind(ggml_backend_dev_t dev) {
    switch (ggml_backend_dev_type(dev)) {
        case GGML_BACKEND_DEVICE_TYPE_CPU: return 0;
        case GGML_BACKEND_DEVICE_TYPE_GPU: return 1;
        case GGML_BACKEND_DEVICE_TYPE_IGPU: return 2;
        default: return 3;
    }
}

}  // namespace

std::string turbo_cpu_feature_list(bool missing_only) {
    std::string text;
    size_t n = 0;
    const cpu_feature * features = cpu_features(&n);
    for (size_t i = 0; i < n; i++) {
        if (features[i].built && !(missing_only && features[i].present)) {
            text += text.empty() ? "" : ",";
            text += features[i].name;
        }
    }
    return text;
}

int32_t turbo_backend_init(void) {
    return turbo_guard("backend_init", [] {
        static std::once_flag once;
        std::call_once(once, [] {
            turbo_log_install();
            turbo_catch_aborts();
            llama_backend_init();
        });
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_cpu_missing(char * buf, int32_t size) {
    const std::string text = turbo_cpu_feature_list(true);
    turbo_copy_text(text, buf, size);
    if (text.empty()) {
        return 0;
    }
    int32_t n = 1;
    for (const char c : text) {
        n += c == ',';
    }
    return n;
}

int32_t turbo_device_count(void) {
    return (int32_t) ggml_backend_dev_count();
}

int32_t turbo_device_get(int32_t index, turbo_device * out) {
    if (index < 0 || index >= turbo_device_count()) {
        return turbo_fail(TURBO_E_ARGUMENT, "device %d of %d", index, turbo_device_count());
    }
    return turbo_guard("device_get", [&] {
        ggml_backend_dev_t dev = ggml_backend_dev_get((size_t) index);
        size_t free = 0;
        size_t total = 0;
        try {
            ggml_backend_dev_memory(dev, &free, &total);
        } catch (const turbo_device_error &) {
            free = total = 0;  // so full that it cannot even be asked
        }
        turbo_copy_name(out->name, sizeof(out->name), ggml_backend_dev_name(dev));
        turbo_copy_name(out->description, sizeof(out->description), ggml_backend_dev_description(dev));
        out->kind = device_kind(dev);
        out->free_bytes = (int64_t) free;
        out->total_bytes = (int64_t) total;
        return (int32_t) TURBO_OK;
    });
}
