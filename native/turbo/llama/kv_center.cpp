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

// The vector in the shape that broadcasts over the tokens of `x`, or null.
static ggml_tensor * vector_for(ggml_context * ctx, const turbo_kv_centers * centers, turbo_kv_centers::kind what, uint32_t il,
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

ggml_tensor * turbo_kv_apply(ggml_context * ctx, const turbo_kv_centers * centers, turbo_kv_centers::kind what, uint32_t il,
                             ggml_tensor * keys, turbo_kv_operation operation) {
    ggml_tensor * v = vector_for(ctx, centers, what, il, keys);
    return v == nullptr ? keys : operation(ctx, keys, v);
}

ggml_tensor * turbo_kv_center(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    return turbo_kv_apply(ctx, centers, turbo_kv_centers::center, il, keys, ggml_sub);
}

ggml_tensor * turbo_kv_uncenter(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    return turbo_kv_apply(ctx, centers, turbo_kv_centers::center, il, keys, ggml_add);
}
