// Rotary position embedding of the queries and keys of a token, or of a short batch, in a graph: which nodes one launch
// of ropes.h can do. As product_groups.h, and checked there.

#pragma once

#include "turbo/cuda/graph_nodes.h"
#include "turbo/cuda/joined_limits.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace turbo_cuda {

// ROPE of the heads of one token or a few, and the norm before it if there is one.
struct rope_chain {
    int first = -1, last = -1; // nodes
    const ggml_tensor *x = nullptr, *rms = nullptr, *norm = nullptr, *rope = nullptr;
};

static inline bool is_heads(const ggml_tensor *t) {
    return t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float) && t->ne[2] <= max_vectors && t->ne[3] == 1 &&
           t->ne[0] <= max_rope_dim;
}

static inline bool match_chain(const ggml_cgraph *cgraph, int i, rope_chain &chain) {
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

static inline bool turn_alike(const ggml_tensor *a, const ggml_tensor *b) {
    return memcmp(a->op_params, b->op_params, sizeof(a->op_params)) == 0 && a->src[1] == b->src[1] &&
           a->src[2] == b->src[2] && a->ne[0] == b->ne[0];
}

// Would llama.cpp write these keys itself, from the kernel that turns them?
static inline bool writes_keys_upstream(const ggml_cgraph *cgraph, int rope) {
    const int next = next_computing(cgraph, rope);
    return next < cgraph->n_nodes && cgraph->nodes[next]->op == GGML_OP_SET_ROWS &&
           !ggml_is_quantized(cgraph->nodes[next]->type);
}

// The chain of keys that goes with the chain of queries that ends at `last`.
static inline bool find_keys(const ggml_cgraph *cgraph, const rope_chain &queries, int farthest, rope_chain &keys) {
    for (int i = next_computing(cgraph, queries.last), n = 0; i < cgraph->n_nodes && n < farthest;
         i = next_computing(cgraph, i), n++) {
        keys = {};
        if (match_chain(cgraph, i, keys)) {
            return turn_alike(queries.rope, keys.rope) && !writes_keys_upstream(cgraph, keys.last);
        }
    }
    return false;
}

// Put the chain of keys right behind that of the queries: what computes between them and is no part of it comes later.
static inline bool bring_together(ggml_cgraph *cgraph, const rope_chain &queries, const rope_chain &keys) {
    ggml_tensor **begin = cgraph->nodes + queries.last + 1, **end = cgraph->nodes + keys.last + 1,
                **chain = cgraph->nodes + keys.first;
    const auto of_chain = [&](ggml_tensor *const *at) { return at >= chain && !ggml_op_is_empty((*at)->op); };
    std::vector<ggml_tensor *> first, later;
    for (ggml_tensor **at = begin; at < end; at++) {
        const bool waits = !of_chain(at) && (!ggml_op_is_empty((*at)->op) ||
                                             std::find(later.begin(), later.end(), base_of(*at)) != later.end());
        (waits ? later : first).push_back(*at);
    }
    const auto makes_keys = [&](const ggml_tensor *node) { return base_of(node) == base_of(keys.x); };
    if (std::any_of(later.begin(), later.end(), makes_keys)) {
        return false; // the keys need it
    }
    std::copy(later.begin(), later.end(), std::copy(first.begin(), first.end(), begin));
    return true;
}

} // namespace turbo_cuda
