#include "turbo/llama/kv_balance.h"

#include "turbo/llama/kv_center.h"

ggml_tensor * turbo_kv_scale(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    ggml_tensor * a = turbo_kv_vector(ctx, centers, turbo_kv_centers::key_scale, il, keys);
    return a == nullptr ? keys : ggml_mul(ctx, keys, a);
}

ggml_tensor * turbo_kv_unscale(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    ggml_tensor * a = turbo_kv_vector(ctx, centers, turbo_kv_centers::key_scale, il, keys);
    return a == nullptr ? keys : ggml_div(ctx, keys, a);
}
