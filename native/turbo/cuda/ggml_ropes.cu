// Rotary position embedding of a token's queries and keys in a graph: one launch for both where keys go to a cache that
// our kernels write. (llama.cpp writes f16 keys from the kernel that turns them, which is as good.)

#include "turbo/cuda/ggml_glue.cuh"
#include "turbo/cuda/ropes.h"

#include <algorithm>
#include <vector>

using namespace turbo_cuda;

namespace {

// ROPE of the heads of one token, and the norm before it if there is one.
struct rope_chain {
    int first = -1, last = -1; // nodes
    const ggml_tensor *x = nullptr, *rms = nullptr, *norm = nullptr, *rope = nullptr;
};

} // namespace

static bool is_heads(const ggml_tensor *t) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && t->ne[2] == 1 && t->ne[3] == 1 &&
           t->ne[0] <= max_rope_dim;
}

static bool match_chain(const ggml_cgraph *cgraph, int i, rope_chain &chain) {
    constexpr int n_dims_at = 1, mode_at = 2, offset_at = 15; // in op_params
    chain.first = i;
    const ggml_tensor *node = cgraph->nodes[i];
    if (node->op == GGML_OP_RMS_NORM) {
        const int at = next_computing(cgraph, i), last = at < cgraph->n_nodes ? next_computing(cgraph, at) : at;
        if (last >= cgraph->n_nodes || !computes(node) || !computes(cgraph->nodes[at]) ||
            !ggml_node_has_n_uses(cgraph, i, 1) || !ggml_node_has_n_uses(cgraph, at, 1)) {
            return false;
        }
        const ggml_tensor *mul = cgraph->nodes[at];
        if (mul->op != GGML_OP_MUL || mul->src[0] != node || mul->src[1]->op != GGML_OP_NONE ||
            mul->src[1]->type != GGML_TYPE_F32 || !ggml_is_contiguous(mul->src[1]) ||
            ggml_nelements(mul->src[1]) != node->ne[0] || cgraph->nodes[last]->src[0] != mul) {
            return false;
        }
        chain.rms = node, chain.norm = mul->src[1], chain.x = node->src[0], chain.last = last;
    } else {
        chain.x = node->src[0], chain.last = i;
    }
    const ggml_tensor *rope = chain.rope = cgraph->nodes[chain.last];
    if (rope->op != GGML_OP_ROPE || !computes(rope) || !is_heads(rope) || !is_heads(chain.x)) {
        return false;
    }
    const int mode = ggml_get_op_params_i32(rope, mode_at), n_dims = ggml_get_op_params_i32(rope, n_dims_at);
    return (mode == GGML_ROPE_TYPE_NORMAL || mode == GGML_ROPE_TYPE_NEOX) && n_dims % 2 == 0 && rope->ne[0] % 2 == 0 &&
           ggml_get_op_params_i32(rope, offset_at) == 0 && rope->src[1]->op == GGML_OP_NONE &&
           rope->src[1]->type == GGML_TYPE_I32 && (rope->src[2] == nullptr || rope->src[2]->op == GGML_OP_NONE);
}

static bool turn_alike(const ggml_tensor *a, const ggml_tensor *b) {
    return memcmp(a->op_params, b->op_params, sizeof(a->op_params)) == 0 && a->src[1] == b->src[1] &&
           a->src[2] == b->src[2] && a->ne[0] == b->ne[0];
}

// Would llama.cpp write these keys itself, from the kernel that turns them?
static bool writes_keys_upstream(const ggml_cgraph *cgraph, int rope) {
    const int next = next_computing(cgraph, rope);
    return next < cgraph->n_nodes && cgraph->nodes[next]->op == GGML_OP_SET_ROWS &&
           !ggml_is_quantized(cgraph->nodes[next]->type);
}

// The chain of keys that goes with the chain of queries that ends at `last`.
static bool find_keys(const ggml_cgraph *cgraph, const rope_chain &queries, int farthest, rope_chain &keys) {
    for (int i = next_computing(cgraph, queries.last), n = 0; i < cgraph->n_nodes && n < farthest;
         i = next_computing(cgraph, i), n++) {
        const ggml_op op = cgraph->nodes[i]->op;
        keys = {};
        if ((op == GGML_OP_RMS_NORM || op == GGML_OP_ROPE) && match_chain(cgraph, i, keys)) {
            return turn_alike(queries.rope, keys.rope) && !writes_keys_upstream(cgraph, keys.last);
        }
    }
    return false;
}

// Put the chain of keys right behind that of the queries: what computes between them and is no part of it comes later.
static bool bring_together(ggml_cgraph *cgraph, const rope_chain &queries, const rope_chain &keys) {
    ggml_tensor **begin = cgraph->nodes + queries.last + 1, **end = cgraph->nodes + keys.last + 1,
                **chain = cgraph->nodes + keys.first;
    const auto of_chain = [&](ggml_tensor *const *at) { return at >= chain && !ggml_op_is_empty((*at)->op); };
    std::vector<ggml_tensor *> first, later;
    for (ggml_tensor **at = begin; at < end; at++) {
        const bool waits =
            !of_chain(at) && (!ggml_op_is_empty((*at)->op) ||
                              std::find(later.begin(), later.end(), base_of(*at)) != later.end());
        (waits ? later : first).push_back(*at);
    }
    if (std::find(later.begin(), later.end(), base_of(keys.x)) != later.end()) {
        return false; // the keys need it
    }
    std::copy(later.begin(), later.end(), std::copy(first.begin(), first.end(), begin));
    return true;
}

void turbo_cuda_order_ropes(ggml_cgraph *cgraph, ggml_backend_graph_optimize_params *params) {
    constexpr int farthest = 6; // nodes that compute
    for (int i = 0; i < cgraph->n_nodes; i++) {
        const ggml_op op = cgraph->nodes[i]->op;
        rope_chain queries, keys;
        if ((op != GGML_OP_RMS_NORM && op != GGML_OP_ROPE) || !match_chain(cgraph, i, queries) ||
            !find_keys(cgraph, queries, farthest, keys) || !bring_together(cgraph, queries, keys)) {
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
    if (chain.norm != nullptr) {
        t.norm = (const float *) chain.norm->data;
        memcpy(&t.epsilon, chain.rms->op_params, sizeof(float));
    }
    t.heads = chain.rope->ne[1];
    return t;
}

int turbo_cuda_fuse_ropes(ggml_backend_cuda_context &ctx, const ggml_cgraph *cgraph, int i) {
    const ggml_op op = cgraph->nodes[i]->op;
    rope_chain queries, keys;
    if ((op != GGML_OP_RMS_NORM && op != GGML_OP_ROPE) || !match_chain(cgraph, i, queries) ||
        !find_keys(cgraph, queries, 1, keys)) {
        return 0;
    }
    const auto in_place_or_apart = [](const rope_chain &c) {
        return !overlap(c.x, c.rope) || (c.x->data == c.rope->data && c.x->nb[1] == c.rope->nb[1]);
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
    args.position = (const int32_t *) queries.rope->src[1]->data;
    args.factors = queries.rope->src[2] != nullptr ? (const float *) queries.rope->src[2]->data : nullptr;
    args.head_dim = queries.rope->ne[0], args.n_dims = params[1];
    args.neox = (params[2] & GGML_ROPE_TYPE_NEOX) != 0;
    args.theta_scale = powf(base, -2.0f / args.n_dims);
    args.freq_scale = number(6), args.ext_factor = number(7), args.attention_factor = number(8);
    ggml_rope_yarn_corr_dims(args.n_dims, params[4], base, number(9), number(10), args.ramp);
    CUDA_CHECK(rope_together(args, ctx.stream()));
    return keys.last - i;
}
