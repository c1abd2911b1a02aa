#include "turbo/llama/kv_center.h"

bool turbo_kv_centers::add(uint32_t il, const float * values, int64_t n, ggml_backend_buffer_type_t buft) {
    const ggml_init_params params = { ggml_tensor_overhead(), nullptr, /*no_alloc*/ true };
    ggml_context_ptr ctx(ggml_init(params));
    if (!ctx) {
        return false;
    }
    ggml_tensor * tensor = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, n);
    ggml_format_name(tensor, "k_center_l%u", il);
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft));
    if (!buffer) {
        return false;
    }
    ggml_backend_tensor_set(tensor, values, 0, n * sizeof(float));
    by_layer[il] = tensor;
    contexts.push_back(std::move(ctx));
    buffers.push_back(std::move(buffer));
    return true;
}

// The centre of layer `il` shaped to broadcast over the tokens of `keys`, or null.
static ggml_tensor * centre_for(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, const ggml_tensor * keys) {
    if (centers == nullptr) {
        return nullptr;
    }
    const auto found = centers->by_layer.find(il);
    if (found == centers->by_layer.end()) {
        return nullptr;
    }
    ggml_tensor * c = found->second;
    return keys->ne[0] == c->ne[0] ? c : ggml_reshape_2d(ctx, c, keys->ne[0], c->ne[0] / keys->ne[0]);
}

ggml_tensor * turbo_kv_center(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    ggml_tensor * c = centre_for(ctx, centers, il, keys);
    return c == nullptr ? keys : ggml_sub(ctx, keys, c);
}

ggml_tensor * turbo_kv_uncenter(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    ggml_tensor * c = centre_for(ctx, centers, il, keys);
    return c == nullptr ? keys : ggml_add(ctx, keys, c);
}
