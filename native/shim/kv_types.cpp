// KV cache types by name: the table, the choice of block size for a model, encode and decode of plain arrays.
#include "handles.h"

#include "ggml.h"

#include "turbo/llama/kv_resolve.h"
#include "turbo/types.h"

#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

namespace {

// llama.cpp's own cache types. Everything else in ggml's table either crashes as a cache type or was never
// meant to be one, so names outside this list and the turbo types are refused.
constexpr ggml_type UPSTREAM_TYPES[] = {
    GGML_TYPE_F32,  GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_Q8_0,   GGML_TYPE_Q5_1,
    GGML_TYPE_Q5_0, GGML_TYPE_Q4_1, GGML_TYPE_Q4_0, GGML_TYPE_IQ4_NL,
};

// Upstream's types, then ours in the order of the enum.
const std::vector<ggml_type> & cache_types() {
    static const std::vector<ggml_type> types = [] {
        std::vector<ggml_type> list(std::begin(UPSTREAM_TYPES), std::end(UPSTREAM_TYPES));
        for (int index = 0; index < TURBO_TYPE_COUNT; index++) {
            list.push_back(turbo_type_of_index(index));
        }
        return list;
    }();
    return types;
}

void describe(ggml_type type, turbo_kv_type * out) {
    const turbo_type_desc * ours = turbo_desc_of(type);
    *out = turbo_kv_type{};
    turbo_copy_name(out->name, sizeof(out->name), ggml_type_name(type));
    turbo_copy_name(out->family, sizeof(out->family), ours ? ours->family : ggml_type_name(type));
    out->id = type;
    out->block_values = (int32_t) ggml_blck_size(type);
    out->block_bytes = (int32_t) ggml_type_size(type);
    out->is_turbo = ours != nullptr;
}

bool find_type(const char * name, ggml_type * out) {
    for (const ggml_type type : cache_types()) {
        if (name && strcmp(ggml_type_name(type), name) == 0) {
            *out = type;
            return true;
        }
    }
    return false;
}

int32_t check_codec(const char * name, int64_t n, int64_t bytes, const void * a, const void * b, ggml_type * type) {
    if (!find_type(name, type)) {
        return turbo_fail(TURBO_E_ARGUMENT, "unknown KV type '%s'", name ? name : "");
    }
    const int64_t block = ggml_blck_size(*type);
    if (n <= 0 || n % block != 0) {
        return turbo_fail(TURBO_E_ARGUMENT, "%lld values are not a positive multiple of %s's block of %lld",
                          (long long) n, name, (long long) block);
    }
    const int64_t need = n / block * (int64_t) ggml_type_size(*type);
    if (bytes != need || !a || !b) {
        return turbo_fail(TURBO_E_ARGUMENT, "%lld values of %s take %lld bytes, not %lld", (long long) n, name,
                          (long long) need, (long long) bytes);
    }
    return TURBO_OK;
}

}  // namespace

int32_t turbo_kv_type_count(void) {
    return (int32_t) cache_types().size();
}

int32_t turbo_kv_type_get(int32_t index, turbo_kv_type * out) {
    if (index < 0 || index >= turbo_kv_type_count()) {
        return turbo_fail(TURBO_E_ARGUMENT, "KV type %d of %d", index, turbo_kv_type_count());
    }
    describe(cache_types()[(size_t) index], out);
    return TURBO_OK;
}

int32_t turbo_kv_select(const turbo_model * model, const char * k, const char * v, turbo_kv_type * out_k,
                        turbo_kv_type * out_v) {
    return turbo_guard("kv_select", [&]() -> int32_t {
        ggml_type type_k;
        ggml_type type_v;
        if (!find_type(k, &type_k)) {
            return turbo_fail(TURBO_E_ARGUMENT, "unknown KV type '%s' for K", k ? k : "");
        }
        if (!find_type(v, &type_v)) {
            return turbo_fail(TURBO_E_ARGUMENT, "unknown KV type '%s' for V", v ? v : "");
        }
        char reason[512] = "";
        if (!turbo_kv_resolve(model->model, &type_k, &type_v, reason, sizeof(reason))) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "%s", reason);
        }
        describe(type_k, out_k);
        describe(type_v, out_v);
        return TURBO_OK;
    });
}

int32_t turbo_kv_encode(const char * name, const float * src, int64_t n, void * dst, int64_t bytes) {
    return turbo_guard("kv_encode", [&]() -> int32_t {
        ggml_type type;
        const int32_t status = check_codec(name, n, bytes, src, dst, &type);
        if (status != TURBO_OK) {
            return status;
        }
        for (int64_t i = 0; i < n; i++) {
            if (!std::isfinite(src[i])) {
                return turbo_fail(TURBO_E_ARGUMENT, "value %lld is not finite", (long long) i);
            }
        }
        if (type == GGML_TYPE_F32) {
            memcpy(dst, src, (size_t) bytes);
            return TURBO_OK;
        }
        const ggml_type_traits * traits = ggml_get_type_traits(type);
        if (!traits->from_float_ref) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "%s has no encoder in this build", name);
        }
        traits->from_float_ref(src, dst, n);
        return TURBO_OK;
    });
}

int32_t turbo_kv_decode(const char * name, const void * src, int64_t bytes, float * dst, int64_t n) {
    return turbo_guard("kv_decode", [&]() -> int32_t {
        ggml_type type;
        const int32_t status = check_codec(name, n, bytes, src, dst, &type);
        if (status != TURBO_OK) {
            return status;
        }
        if (type == GGML_TYPE_F32) {
            memcpy(dst, src, (size_t) bytes);
            return TURBO_OK;
        }
        const ggml_type_traits * traits = ggml_get_type_traits(type);
        if (!traits->to_float) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "%s has no decoder in this build", name);
        }
        traits->to_float(src, dst, n);
        return TURBO_OK;
    });
}
