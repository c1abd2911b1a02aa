#include "turbo/llama/kv_center.h"

bool turbo_kv_centers::add(kind what, uint32_t il, const float * values, int64_t n, ggml_backend_buffer_type_t buft) {
    const ggml_init_params params = { ggml_tensor_overhead(), nullptr, /*no_alloc*/ true };
    ggml_context_ptr ctx(ggml_init(params));
    if (!ctx) {
        return false;
    }
    ggml_tensor * tensor = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, n);
    static const char * const names[kinds] = { "k_center", "k_scale", "q_scale" };
    ggml_format_name(tensor, "%s_l%u", names[what], il);
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft));
    if (!buffer) {
        return false;
    }
    ggml_backend_tensor_set(tensor, values, 0, n * sizeof(float));
    by_layer[what][il] = tensor;
    contexts.push_back(std::move(ctx));
    buffers.push_back(std::move(buffer));
    return true;
}

ggml_tensor * turbo_kv_vector(ggml_context * ctx, const turbo_kv_centers * centers, turbo_kv_centers::kind what, uint32_t il,
                              const ggml_tensor * x) {
    if (centers == nullptr) {
        return nullptr;
    }
    const auto found = centers->by_layer[what].find(il);
    if (found == centers->by_layer[what].end()) {
        return nullptr;
    }
    ggml_tensor * v = found->second;
    return x->ne[0] == v->ne[0] ? v : ggml_reshape_2d(ctx, v, x->ne[0], v->ne[0] / x->ne[0]);
}

ggml_tensor * turbo_kv_center(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    ggml_tensor * c = turbo_kv_vector(ctx, centers, turbo_kv_centers::center, il, keys);
    return c == nullptr ? keys : ggml_sub(ctx, keys, c);
}

ggml_tensor * turbo_kv_uncenter(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    ggml_tensor * c = turbo_kv_vector(ctx, centers, turbo_kv_centers::center, il, keys);
    return c == nullptr ? keys : ggml_add(ctx, keys, c);
}
