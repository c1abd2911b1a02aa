#include "turbo/llama/kv_balance.h"

#include "turbo/llama/kv_center.h"

ggml_tensor * turbo_kv_scale(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    return turbo_kv_apply(ctx, centers, turbo_kv_centers::key_scale, il, keys, ggml_mul);
}

ggml_tensor * turbo_kv_unscale(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    return turbo_kv_apply(ctx, centers, turbo_kv_centers::key_scale, il, keys, ggml_div);
}
