// Rotary position embedding of the queries and keys of a token or a short batch in a graph: one launch for both where
// keys go to a cache that our kernels write. (llama.cpp writes f16 keys from the kernel that turns them, which is as
// good.)

#include "turbo/cuda/ggml_glue.cuh"
#include "turbo/cuda/rope_chains.h"
#include "turbo/cuda/ropes.h"

using namespace turbo_cuda;

void turbo_cuda_order_ropes(ggml_cgraph *cgraph, ggml_backend_graph_optimize_params *params) {
    constexpr int farthest = 6; // nodes that compute
    for (int i = 0; i < cgraph->n_nodes; i++) {
        rope_chain queries, keys;
        if (!match_chain(cgraph, i, queries) || !find_keys(cgraph, queries, farthest, keys) ||
            !bring_together(cgraph, queries, keys)) {
            continue;
        }
        for (const ggml_tensor *x : {queries.x, keys.x}) {
            params->add_alloc_dep(params->user_data, const_cast<ggml_tensor *>(base_of(x)),
                                  const_cast<ggml_tensor *>(keys.rope));
        }
        i = queries.last;
        while (cgraph->nodes[i] != keys.rope) {
            i++;
        }
    }
}

static rope_heads heads_of(const rope_chain &chain) {
    rope_heads t = {};
    t.x = (const float *) chain.x->data, t.out = (float *) chain.rope->data;
    t.x_stride = chain.x->nb[1] / sizeof(float), t.out_stride = chain.rope->nb[1] / sizeof(float);
    t.x_token = chain.x->nb[2] / sizeof(float), t.out_token = chain.rope->nb[2] / sizeof(float);
    if (chain.norm != nullptr) {
        t.norm = (const float *) chain.norm->data;
        memcpy(&t.epsilon, chain.rms->op_params, sizeof(float));
    }
    t.heads = chain.rope->ne[1];
    return t;
}

int turbo_cuda_fuse_ropes(ggml_backend_cuda_context &ctx, const ggml_cgraph *cgraph, int i) {
    rope_chain queries, keys;
    if (!match_chain(cgraph, i, queries) || !find_keys(cgraph, queries, 1, keys)) {
        return 0;
    }
    const auto in_place_or_apart = [](const rope_chain &c) {
        return !overlap(c.x, c.rope) ||
               (c.x->data == c.rope->data && c.x->nb[1] == c.rope->nb[1] && c.x->nb[2] == c.rope->nb[2]);
    };
    if (!in_place_or_apart(queries) || !in_place_or_apart(keys) || overlap(queries.rope, keys.x) ||
        overlap(keys.rope, queries.x) || overlap(queries.rope, keys.rope)) {
        return 0;
    }
    const int32_t *params = queries.rope->op_params;
    const auto number = [&](int at) {
        float x;
        memcpy(&x, params + at, sizeof(x));
        return x;
    };
    const float base = number(5);
    rope_args args = {};
    args.tensor[0] = heads_of(queries), args.tensor[1] = heads_of(keys);
    args.position = (const int32_t *) queries.rope->src[1]->data, args.tokens = queries.rope->ne[2];
    args.factors = queries.rope->src[2] != nullptr ? (const float *) queries.rope->src[2]->data : nullptr;
    args.head_dim = queries.rope->ne[0], args.n_dims = params[1];
    args.neox = (params[2] & GGML_ROPE_TYPE_NEOX) != 0;
    args.theta_scale = powf(base, -2.0f / args.n_dims);
    args.freq_scale = number(6), args.ext_factor = number(7), args.attention_factor = number(8);
    ggml_rope_yarn_corr_dims(args.n_dims, params[4], base, number(9), number(10), args.ramp);
    CUDA_CHECK(rope_together(args, ctx.stream()));
    return keys.last - i + 1;
}
