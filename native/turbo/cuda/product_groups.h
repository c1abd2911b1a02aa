// The products of a decode step, or of a short batch, in a graph: which nodes go into one launch of products.h. A group
// is found by its structure alone, so that the same one is found before memory is laid out and when it runs. Nothing
// here knows CUDA: native/tests/test_product_groups.cpp checks it on graphs without a GPU.

#pragma once

#include "turbo/cuda/graph_nodes.h"
#include "turbo/cuda/joined_limits.h"

#include <algorithm>
#include <vector>

namespace turbo_cuda {

// One launch: the nodes it covers, in tensors of the graph. Addresses are read when it runs.
struct product_group {
    int last = -1;                                     // node
    const ggml_tensor *x = nullptr;                    // the vectors, before they are normalised
    const ggml_tensor *rms = nullptr, *norm = nullptr; // RMS_NORM and the vector it is multiplied with
    const ggml_tensor *normed = nullptr;               // where the product of both has to go, if others read it
    struct part {
        const ggml_tensor *weight, *gate, *add, *out;
        int64_t rows, weight_offset; // in rows: up and gate may be one tensor, the gate first
    } matrix[max_products];
    int n = 0;
    const ggml_tensor *ids = nullptr, *mix = nullptr; // mix: what the experts taken count
    const ggml_tensor *scale = nullptr;               // and what every expert's product counts, if that is given
    gate_activation gated = GATE_NONE;
    const ggml_tensor *next = nullptr; // the matrix of every expert that is read next
};

// ---- what belongs together
// --------------------------------------------------------------------------------------------

static inline bool is_vector(const ggml_tensor *t) {
    return t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && ggml_nrows(t) == 1;
}

// One or a few of them, behind each other: those of a short batch.
static inline bool is_vectors(const ggml_tensor *t) {
    return t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && t->ne[1] <= max_vectors && t->ne[2] == 1 &&
           t->ne[3] == 1;
}

static inline bool used_once(const ggml_cgraph *cgraph, int i) {
    return ggml_node_has_n_uses(cgraph, i, 1);
}

// A matrix (or one of every expert) as the kernels read it.
static inline bool is_matrix(const ggml_tensor *w) {
    return w->op == GGML_OP_NONE && w->view_src == nullptr && ggml_is_contiguous(w) && w->ne[3] == 1;
}

// Does the product ask for nothing but what products() does?
static inline bool is_plain_product(const ggml_tensor *node, ggml_op op) {
    if (node->op != op || !computes(node) || node->type != GGML_TYPE_F32 || !ggml_is_contiguous(node)) {
        return false;
    }
    const ggml_tensor *w = node->src[0];
    constexpr int src_precision = 3; // place in op_params
    return ggml_get_op_params_i32(node, src_precision) == GGML_PREC_DEFAULT && is_matrix(w) &&
           node->src[1]->type == GGML_TYPE_F32 && ggml_is_contiguous(node->src[1]);
}

// MUL_MAT of one matrix and one vector, or the few of a short batch.
static inline bool is_vector_product(const ggml_tensor *node) {
    if (!is_plain_product(node, GGML_OP_MUL_MAT) || !is_vectors(node->src[1]) || !is_vectors(node)) {
        return false;
    }
    const ggml_tensor *w = node->src[0];
    const int64_t vectors = node->ne[1];
    return w->ne[2] == 1 && products_read(w->type, w->ne[0], false, vectors) &&
           (vectors == 1 || w->ne[0] % batch_columns == 0) && (w->type != GGML_TYPE_F32 || w->ne[1] <= 1024);
}

// MUL_MAT_ID of one token or a few: the vector of each, the same for all its experts or one for each.
static inline bool is_expert_product(const ggml_tensor *node, bool same_vector) {
    if (!is_plain_product(node, GGML_OP_MUL_MAT_ID) || !ggml_is_quantized(node->src[0]->type)) {
        return false;
    }
    const ggml_tensor *w = node->src[0], *x = node->src[1], *ids = node->src[2];
    const int64_t tokens = ids->ne[1];
    return ids->type == GGML_TYPE_I32 && ids->nb[0] == sizeof(int32_t) && ids->nb[1] % sizeof(int32_t) == 0 &&
           tokens <= max_vectors && ids->ne[2] == 1 && node->ne[2] == tokens && node->ne[3] == 1 &&
           x->ne[2] == tokens && x->ne[3] == 1 && x->ne[1] == (same_vector ? 1 : ids->ne[0]) &&
           products_read(w->type, w->ne[0], true, x->ne[1]);
}

static inline gate_activation activation_of(const ggml_tensor *glu) {
    switch (ggml_get_glu_op(glu)) {
        case GGML_GLU_OP_SWIGLU: return GATE_SILU;
        case GGML_GLU_OP_GEGLU: return GATE_GELU;
        case GGML_GLU_OP_REGLU: return GATE_RELU;
        default: return GATE_NONE;
    }
}

// Is node i the sum of `product` and something like it that no other node of the group makes? Then that, else null.
static inline const ggml_tensor *added_to(const ggml_tensor *node, const ggml_tensor *product) {
    if (node->op != GGML_OP_ADD || !computes(node) || !is_vectors(node)) {
        return nullptr;
    }
    const ggml_tensor *other = node->src[0] == product   ? node->src[1]
                               : node->src[1] == product ? node->src[0]
                                                         : nullptr;
    return other != nullptr && other != product && is_vectors(other) && ggml_are_same_shape(other, node) ? other
                                                                                                         : nullptr;
}

// Up and gate products of the same vector, or of experts, and their activation, from node i on: two matrices, or one
// with both.
static inline bool match_gated(const ggml_cgraph *cgraph, int i, const ggml_tensor *x, product_group &group) {
    const ggml_tensor *first = cgraph->nodes[i];
    const bool experts = first->op == GGML_OP_MUL_MAT_ID;
    const auto fits = [&](const ggml_tensor *node) {
        return experts ? is_expert_product(node, true)
                       : is_vector_product(node) && is_vector(node) && ggml_is_quantized(node->src[0]->type);
    };
    if (!fits(first) || (x != nullptr && first->src[1] != x)) {
        return false;
    }
    const int next = next_computing(cgraph, i);
    if (next >= cgraph->n_nodes) {
        return false;
    }
    const ggml_tensor *second = cgraph->nodes[next], *glu = second;
    int last = next;
    if (second->op != GGML_OP_GLU) {
        last = next_computing(cgraph, next);
        if (last >= cgraph->n_nodes || !fits(second) || !used_once(cgraph, i) || !used_once(cgraph, next) ||
            second->src[1] != first->src[1] || (experts && second->src[2] != first->src[2]) ||
            second->src[0]->type != first->src[0]->type || !ggml_are_same_shape(second->src[0], first->src[0])) {
            return false;
        }
        glu = cgraph->nodes[last];
    }
    if (glu->op != GGML_OP_GLU || !computes(glu) || activation_of(glu) == GATE_NONE || !ggml_is_contiguous(glu) ||
        glu->src[1] == nullptr) {
        return false;
    }
    product_group::part m = {};
    m.rows = glu->ne[0], m.out = glu;
    if (second == glu) { // two views of one product: its first rows are the gate's
        const ggml_tensor *gate = glu->src[0], *up = glu->src[1];
        const bool halves = gate->view_src == first && up->view_src == first && gate->view_offs == 0 &&
                            up->view_offs == m.rows * sizeof(float) && first->ne[0] == 2 * m.rows;
        // nobody but the views reads it: two uses by them
        if (!halves || ggml_node_get_use_count(cgraph, i) != 2) {
            return false;
        }
        m.weight = m.gate = first->src[0], m.weight_offset = m.rows;
    } else if (glu->src[0] == first && glu->src[1] == second) {
        m.gate = first->src[0], m.weight = second->src[0];
    } else if (glu->src[0] == second && glu->src[1] == first) {
        m.gate = second->src[0], m.weight = first->src[0];
    } else {
        return false;
    }
    group.matrix[0] = m, group.n = 1, group.gated = activation_of(glu), group.last = last;
    group.x = first->src[1], group.ids = experts ? first->src[2] : nullptr;
    return true;
}

// Vector products that follow each other from node i on and read `x`, each with what is added to it.
static inline void match_products(const ggml_cgraph *cgraph, int i, const ggml_tensor *x, product_group &group) {
    for (; i < cgraph->n_nodes && group.n < max_products; i = next_computing(cgraph, group.last)) {
        const ggml_tensor *node = cgraph->nodes[i];
        if (!is_vector_product(node) || node->src[1] != x ||
            (group.n > 0 && node->src[0]->type != group.matrix[0].weight->type)) {
            return;
        }
        product_group::part m = {};
        m.weight = node->src[0], m.rows = node->src[0]->ne[1], m.out = node;
        group.last = i;
        const int next = next_computing(cgraph, i);
        const ggml_tensor *sum = next < cgraph->n_nodes ? cgraph->nodes[next] : nullptr;
        if (sum != nullptr && used_once(cgraph, i) && (m.add = added_to(sum, node)) != nullptr) {
            m.out = sum, group.last = next;
        }
        group.matrix[group.n++] = m;
    }
}

// The product of the experts that follows `group` and takes the same ones.
static inline void find_next(const ggml_cgraph *cgraph, product_group &group) {
    const int next = next_computing(cgraph, group.last);
    if (group.ids != nullptr && group.mix == nullptr && next < cgraph->n_nodes) {
        const ggml_tensor *node = cgraph->nodes[next];
        if (is_plain_product(node, GGML_OP_MUL_MAT_ID) && node->src[2] == group.ids) {
            group.next = node->src[0];
        }
    }
}

// RMS_NORM, its weights, and what reads the result.
static inline bool match_normed(const ggml_cgraph *cgraph, int i, product_group &group) {
    const ggml_tensor *rms = cgraph->nodes[i];
    const int at = next_computing(cgraph, i);
    if (!computes(rms) || !is_vectors(rms) || !is_vectors(rms->src[0]) || rms->ne[0] % 32 != 0 ||
        !used_once(cgraph, i) || at >= cgraph->n_nodes) {
        return false;
    }
    const ggml_tensor *mul = cgraph->nodes[at];
    if (mul->op != GGML_OP_MUL || !computes(mul) || !is_vectors(mul)) {
        return false;
    }
    const ggml_tensor *norm = mul->src[0] == rms ? mul->src[1] : mul->src[1] == rms ? mul->src[0] : nullptr;
    if (norm == nullptr || !is_vector(norm) || norm->ne[0] != rms->ne[0] || norm->op != GGML_OP_NONE) {
        return false;
    }
    const int first = next_computing(cgraph, at);
    if (first >= cgraph->n_nodes) {
        return false;
    }
    int readers = 2;
    if (cgraph->nodes[first]->op != GGML_OP_MUL_MAT || !match_gated(cgraph, first, mul, group)) {
        match_products(cgraph, first, mul, group);
        readers = group.n;
    } else if (group.matrix[0].weight == group.matrix[0].gate) {
        readers = 1;
    }
    group.x = rms->src[0], group.rms = rms, group.norm = norm;
    group.normed = ggml_node_has_n_uses(cgraph, at, readers) ? nullptr : mul;
    return group.n > 0;
}

// What the product of each expert counts, looked up for those taken and multiplied with it right behind the product,
// from node `at` on: then `at` becomes that MUL. Else null.
static inline const ggml_tensor *scale_of_experts(const ggml_cgraph *cgraph, const ggml_tensor *product, int &at) {
    const int second = next_computing(cgraph, at),
              third = second < cgraph->n_nodes ? next_computing(cgraph, second) : second;
    if (third >= cgraph->n_nodes || cgraph->nodes[at]->op != GGML_OP_REPEAT) {
        return nullptr;
    }
    const ggml_tensor *repeat = cgraph->nodes[at], *rows = cgraph->nodes[second], *mul = cgraph->nodes[third],
                      *scale = base_of(repeat->src[0]);
    const bool found = computes(repeat) && computes(rows) && computes(mul) && used_once(cgraph, at) &&
                       used_once(cgraph, second) && used_once(cgraph, third) && scale->op == GGML_OP_NONE &&
                       scale->type == GGML_TYPE_F32 && ggml_is_contiguous(scale) && repeat->src[0]->ne[0] == 1 &&
                       ggml_nelements(scale) == product->src[0]->ne[2] && ggml_is_contiguous(repeat->src[0]) &&
                       ggml_nelements(repeat->src[0]) == ggml_nelements(scale) && rows->op == GGML_OP_GET_ROWS &&
                       rows->src[0] == repeat && rows->src[1] == product->src[2] && mul->op == GGML_OP_MUL &&
                       mul->src[0] == product && mul->src[1] == rows && ggml_are_same_shape(mul, product);
    if (!found) {
        return nullptr;
    }
    at = third;
    return scale;
}

// The last product of an expert layer, weighted, summed over the experts, and what is added to the sum.
static inline bool match_mix(const ggml_cgraph *cgraph, int i, product_group &group) {
    const ggml_tensor *product = cgraph->nodes[i];
    int at = next_computing(cgraph, i);
    if (!is_expert_product(product, false) || !used_once(cgraph, i) || at >= cgraph->n_nodes) {
        return false;
    }
    const int64_t used = product->ne[1], tokens = product->ne[2];
    const ggml_tensor *experts = product;
    if ((group.scale = scale_of_experts(cgraph, product, at)) != nullptr) {
        experts = cgraph->nodes[at];
        at = next_computing(cgraph, at);
        if (at >= cgraph->n_nodes) {
            return false;
        }
    }
    const ggml_tensor *weighted = cgraph->nodes[at];
    if (weighted->op != GGML_OP_MUL || !computes(weighted) || used < 2 || used > max_mixed_experts ||
        weighted->src[0] != experts || weighted->src[1]->type != GGML_TYPE_F32 || weighted->src[1]->ne[0] != 1 ||
        weighted->src[1]->ne[1] != used || !ggml_is_contiguous(weighted->src[1]) ||
        ggml_nelements(weighted->src[1]) != used * tokens || ggml_node_get_use_count(cgraph, at) != used) {
        return false;
    }
    const ggml_tensor *sum = nullptr; // of the first ones
    for (int64_t e = 1; e < used; e++) {
        const int before = at;
        at = next_computing(cgraph, at);
        if (at >= cgraph->n_nodes || (sum != nullptr && !used_once(cgraph, before))) {
            return false;
        }
        const ggml_tensor *node = cgraph->nodes[at];
        const auto expert = [&](const ggml_tensor *t, int64_t which) {
            return t->view_src == weighted && t->view_offs == which * weighted->nb[1] && t->ne[0] == weighted->ne[0] &&
                   t->nb[0] == sizeof(float) && t->ne[1] == tokens && t->ne[2] == 1 && t->ne[3] == 1 &&
                   (tokens == 1 || t->nb[1] == weighted->nb[2]);
        };
        const bool adds = node->op == GGML_OP_ADD && computes(node) && is_vectors(node) && expert(node->src[1], e) &&
                          (e == 1 ? expert(node->src[0], 0) : node->src[0] == sum);
        if (!adds) {
            return false;
        }
        sum = node;
    }
    product_group::part m = {};
    m.weight = product->src[0], m.rows = product->src[0]->ne[1], m.out = sum;
    group.last = at;
    const int next = next_computing(cgraph, at);
    if (next < cgraph->n_nodes && used_once(cgraph, at) && (m.add = added_to(cgraph->nodes[next], sum)) != nullptr) {
        m.out = cgraph->nodes[next], group.last = next;
    }
    group.matrix[0] = m, group.n = 1;
    group.x = product->src[1], group.ids = product->src[2], group.mix = weighted->src[1];
    return true;
}

// What it writes.
static inline std::vector<const ggml_tensor *> outputs_of(const product_group &group) {
    std::vector<const ggml_tensor *> outputs;
    for (int m = 0; m < group.n; m++) {
        outputs.push_back(group.matrix[m].out);
    }
    if (group.normed != nullptr) {
        outputs.push_back(group.normed);
    }
    return outputs;
}

// Is all that nodes i .. group.last compute, and the group does not write, read by nobody but them?
static inline bool keeps_to_itself(const ggml_cgraph *cgraph, int i, const product_group &group) {
    const std::vector<const ggml_tensor *> outputs = outputs_of(group);
    ggml_tensor **begin = cgraph->nodes + i, **end = cgraph->nodes + group.last + 1;
    for (ggml_tensor **node = begin; node < end; node++) {
        const ggml_tensor *base = base_of(*node);
        const bool written =
            std::any_of(outputs.begin(), outputs.end(), [&](const ggml_tensor *out) { return base_of(out) == base; });
        if (written || std::find(begin, end, base) == end) {
            continue;
        }
        int uses = 0;
        for (ggml_tensor **reader = begin; reader < end; reader++) {
            uses += (int) std::count((*reader)->src, (*reader)->src + GGML_MAX_SRC, *node);
        }
        if (((*node)->flags & GGML_TENSOR_FLAG_OUTPUT) != 0 ||
            ggml_node_get_use_count(cgraph, (int) (node - cgraph->nodes)) != uses) {
            return false;
        }
    }
    return true;
}

static inline bool find_group(const ggml_cgraph *cgraph, int i, product_group &group) {
    const ggml_tensor *node = cgraph->nodes[i];
    switch (node->op) {
        case GGML_OP_RMS_NORM: return match_normed(cgraph, i, group);
        case GGML_OP_MUL_MAT:
            if (!match_gated(cgraph, i, nullptr, group)) {
                match_products(cgraph, i, node->src[1], group);
                group.x = node->src[1];
            }
            return group.n > 0;
        case GGML_OP_MUL_MAT_ID: return match_gated(cgraph, i, nullptr, group) || match_mix(cgraph, i, group);
        default: return false;
    }
}

static inline bool match(const ggml_cgraph *cgraph, int i, product_group &group) {
    return find_group(cgraph, i, group) && keeps_to_itself(cgraph, i, group);
}

// All that a group reads, its weights apart.
static inline std::vector<const ggml_tensor *> inputs_of(const product_group &group) {
    std::vector<const ggml_tensor *> inputs = {group.x, group.norm, group.ids, group.mix};
    for (int m = 0; m < group.n; m++) {
        inputs.push_back(group.matrix[m].add);
    }
    inputs.erase(std::remove(inputs.begin(), inputs.end(), nullptr), inputs.end());
    return inputs;
}

// Products that read what node i makes stand behind each other, each with what is added to it, right after the first.
static inline void gather_products(ggml_cgraph *cgraph, int i) {
    constexpr int farthest = 48; // nodes; those of a layer's queries, keys and values
    const ggml_tensor *x = cgraph->nodes[i];
    const int first = next_computing(cgraph, i), end = std::min(cgraph->n_nodes, i + farthest);
    if (first >= end || !is_vector_product(cgraph->nodes[first]) || cgraph->nodes[first]->src[1] != x) {
        return;
    }
    const auto length = [&](int at) { // of a product and what is added to it
        const ggml_tensor *add = at + 1 < cgraph->n_nodes && used_once(cgraph, at)
                                     ? added_to(cgraph->nodes[at + 1], cgraph->nodes[at])
                                     : nullptr;
        return add != nullptr && add->op == GGML_OP_NONE ? 2 : 1;
    };
    int to = first + length(first);
    for (int from = to; from < end; from++) {
        const ggml_tensor *node = cgraph->nodes[from];
        const bool changes_x = base_of(node) == base_of(x) && !ggml_op_is_empty(node->op); // in place
        if (node->op == GGML_OP_FLASH_ATTN_EXT || changes_x) {
            return;
        }
        if (is_vector_product(node) && node->src[1] == x && node->src[0]->type == cgraph->nodes[first]->src[0]->type) {
            const int n = length(from);
            std::rotate(cgraph->nodes + to, cgraph->nodes + from, cgraph->nodes + from + n);
            to += n, from += n - 1;
        }
    }
}

} // namespace turbo_cuda
