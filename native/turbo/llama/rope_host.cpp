#include "turbo/llama/rope_host.h"

#include "llama-context.h"
#include "llama-model.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-cpu.h"

#include <cstring>

turbo_rope turbo_rope_of(const llama_context * ctx, uint32_t il) {
    const llama_model & model = ctx->get_model();
    const llama_cparams & cparams = ctx->get_cparams();
    turbo_rope rope;
    rope.used = model.hparams.rope_type != LLAMA_ROPE_TYPE_NONE && model.hparams.has_rope(il);
    if (!rope.used) {
        return rope;
    }
    // With text alone all sections of a multi-axis RoPE stand at the same position, which is the plain NEOX order.
    const bool multi = model.hparams.rope_type == LLAMA_ROPE_TYPE_MROPE || model.hparams.rope_type == LLAMA_ROPE_TYPE_IMROPE;
    rope.type = multi ? LLAMA_ROPE_TYPE_NEOX : model.hparams.rope_type;
    rope.n_rot = model.hparams.n_rot(il);
    rope.n_ctx_orig = cparams.n_ctx_orig_yarn;
    rope.freq_base = model.get_rope_freq_base(cparams, il);
    rope.freq_scale = model.get_rope_freq_scale(cparams, il);
    rope.ext_factor = cparams.yarn_ext_factor;
    rope.attn_factor = cparams.yarn_attn_factor;
    rope.beta_fast = cparams.yarn_beta_fast;
    rope.beta_slow = cparams.yarn_beta_slow;
    if (const ggml_tensor * factors = model.get_rope_factors(cparams, il)) {
        rope.factors.resize(ggml_nelements(factors));
        ggml_backend_tensor_get(factors, rope.factors.data(), 0, ggml_nbytes(factors));
    }
    return rope;
}

void turbo_rope_apply(const turbo_rope & rope, std::vector<float> & x, int64_t head_dim, int64_t n_head,
                      const std::vector<int32_t> & pos) {
    if (!rope.used || pos.empty()) {
        return;
    }
    const size_t bytes = x.size() * sizeof(float);
    const ggml_init_params params = { 3 * bytes + pos.size() * sizeof(int32_t) + rope.factors.size() * sizeof(float)
                                      + 32 * ggml_tensor_overhead() + ggml_graph_overhead() + (1 << 16), nullptr, false };
    ggml_context_ptr ctx(ggml_init(params));
    ggml_tensor * rows = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, head_dim, n_head, pos.size());
    ggml_tensor * where = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I32, pos.size());
    ggml_tensor * factors = nullptr;
    if (!rope.factors.empty()) {
        factors = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, rope.factors.size());
        memcpy(factors->data, rope.factors.data(), rope.factors.size() * sizeof(float));
    }
    memcpy(rows->data, x.data(), bytes);
    memcpy(where->data, pos.data(), pos.size() * sizeof(int32_t));
    ggml_tensor * out = ggml_rope_ext(ctx.get(), rows, where, factors, rope.n_rot, rope.type, rope.n_ctx_orig, rope.freq_base,
                                      rope.freq_scale, rope.ext_factor, rope.attn_factor, rope.beta_fast, rope.beta_slow);
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, out);
    ggml_graph_compute_with_ctx(ctx.get(), graph, 1);
    memcpy(x.data(), out->data, bytes);
}

std::vector<float> turbo_rope_back(const turbo_rope & rope, std::vector<float> x, int64_t head_dim, int64_t n_head, int32_t first,
                                   int32_t step) {
    std::vector<int32_t> back(x.size() / (head_dim * n_head));
    for (size_t r = 0; r < back.size(); ++r) {
        back[r] = -(first + (int32_t) r * step);
    }
    turbo_rope_apply(rope, x, head_dim, n_head, back);
    const float m = turbo_rope_magnitude(rope, head_dim); // turning back multiplies by it once more
    for (float & value : x) {
        value /= m * m;
    }
    return x;
}

float turbo_rope_magnitude(const turbo_rope & rope, int64_t head_dim) {
    std::vector<float> unit(head_dim, 0.0f);
    unit[0] = 1.0f;
    turbo_rope_apply(rope, unit, head_dim, 1, { 0 });
    return unit[0];
}
