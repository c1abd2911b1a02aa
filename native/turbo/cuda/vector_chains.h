// Runs of small nodes between the products of a decode step or a short batch: norms, factors, sums of whole vectors.
// Which of them one launch of chains.h can do. As product_groups.h, by structure alone, and checked beside it.

#pragma once

#include "turbo/cuda/product_groups.h"
#include "turbo/cuda/rope_chains.h"

namespace turbo_cuda {

// Where a line takes a vector from: a tensor that is there before the chain begins, or the result of a line before.
struct chain_input {
    const ggml_tensor *tensor = nullptr;
    int line = -1;
};

static inline bool operator==(const chain_input &a, const chain_input &b) {
    return a.tensor == b.tensor && a.line == b.line;
}

// What a node does in a line, in the order in which it can. A line that is made of fewer nodes lacks the rest.
enum chain_place { CHAIN_START, CHAIN_NORM, CHAIN_SCALE, CHAIN_FACTOR, CHAIN_SUM };

// Start, divided by its root mean square, scaled, multiplied, added to. A result that is read more than once ends it.
struct chain_line {
    chain_input start, add;
    const ggml_tensor *rms = nullptr, *scale = nullptr; // RMS_NORM, SCALE
    const ggml_tensor *factor = nullptr;                // what MUL multiplies with, made outside
    const ggml_tensor *out = nullptr;                   // the node it ends with
    chain_place end = CHAIN_START;                      // what that does
    bool written = false;                               // somebody else reads it
};

// Nodes that follow each other.
struct vector_chain {
    chain_line line[max_chain_lines];
    int n = 0;
    int first = -1, last = -1;
};

// ---- one node
// ---------------------------------------------------------------------------------------------------------

static inline bool is_chain_node(const ggml_tensor *node) {
    switch (node->op) {
        case GGML_OP_RMS_NORM:
        case GGML_OP_SCALE:
        case GGML_OP_MUL:
        case GGML_OP_ADD:
            return computes(node) && node->view_src == nullptr && is_vectors(node) && node->ne[0] % 4 == 0 &&
                   node->ne[0] <= max_chain_values && is_vectors(node->src[0]) &&
                   ggml_are_same_shape(node, node->src[0]);
        default: return false;
    }
}

// Is one of them multiplied with or added to every one of `vectors`? Or one number multiplied with all?
static inline bool goes_with(const ggml_tensor *t, const ggml_tensor *vectors, bool may_be_number) {
    const bool fits = ggml_are_same_shape(t, vectors) || (ggml_nrows(t) == 1 && t->ne[0] == vectors->ne[0]) ||
                      (may_be_number && ggml_nelements(t) == 1);
    return t->type == GGML_TYPE_F32 && ggml_is_contiguous(t) && fits;
}

// Where `t` comes from; false if it is something inside the chain that is no result of a line.
static inline bool find_input(const ggml_cgraph *cgraph, const vector_chain &chain, const ggml_tensor *t,
                              chain_input &input) {
    input = {};
    for (int l = 0; l < chain.n; l++) {
        if (chain.line[l].out == t) {
            input.line = l;
            return true;
        }
    }
    ggml_tensor **begin = cgraph->nodes + std::max(chain.first, 0), **end = cgraph->nodes + chain.last + 1;
    input.tensor = t;
    return chain.n == 0 || std::find(begin, end, base_of(t)) == end;
}

// Node i, the next that computes, becomes part of the chain, if it can.
static inline bool take(const ggml_cgraph *cgraph, int i, vector_chain &chain) {
    const ggml_tensor *node = cgraph->nodes[i];
    if (!is_chain_node(node) || (chain.n > 0 && !ggml_are_same_shape(node, chain.line[0].out))) {
        return false;
    }
    const ggml_tensor *main = node->src[0], *other = nullptr;
    const ggml_tensor *before = chain.n > 0 ? chain.line[chain.n - 1].out : nullptr;
    if (node->op == GGML_OP_MUL || node->op == GGML_OP_ADD) {
        other = node->src[1];
        if (other == before && main != before) {
            std::swap(main, other);
        }
        if (!goes_with(other, node, node->op == GGML_OP_MUL)) {
            return false;
        }
    }
    chain_input start, second;
    if (!find_input(cgraph, chain, main, start) || (other != nullptr && !find_input(cgraph, chain, other, second)) ||
        (node->op == GGML_OP_MUL && second.line >= 0)) {
        return false;
    }
    const chain_place place = node->op == GGML_OP_RMS_NORM ? CHAIN_NORM
                              : node->op == GGML_OP_SCALE  ? CHAIN_SCALE
                              : node->op == GGML_OP_MUL    ? CHAIN_FACTOR
                                                           : CHAIN_SUM;
    const bool goes_on = main == before && chain.line[chain.n - 1].end < place && used_once(cgraph, chain.last);
    if (!goes_on) {
        if (chain.n == max_chain_lines) {
            return false;
        }
        chain.line[chain.n++].start = start;
    }
    chain_line &line = chain.line[chain.n - 1];
    switch (place) {
        case CHAIN_NORM: line.rms = node; break;
        case CHAIN_SCALE: line.scale = node; break;
        case CHAIN_FACTOR: line.factor = other; break;
        default: line.add = second; break;
    }
    line.out = node, line.end = place;
    chain.first = chain.first < 0 ? i : chain.first, chain.last = i;
    return true;
}

// ---- a chain
// ----------------------------------------------------------------------------------------------------------

// Does node `next` read node i, and nobody else?
static inline bool leads_to(const ggml_cgraph *cgraph, int i, int next) {
    const ggml_tensor *const *src = next < cgraph->n_nodes ? cgraph->nodes[next]->src : nullptr;
    return src != nullptr && used_once(cgraph, i) && (src[0] == cgraph->nodes[i] || src[1] == cgraph->nodes[i]);
}

// Has another launch a better use for node i and what follows it?
static inline bool is_wanted_elsewhere(const ggml_cgraph *cgraph, int i) {
    product_group group;
    rope_chain rope;
    const ggml_op op = cgraph->nodes[i]->op;
    if (op == GGML_OP_RMS_NORM) {
        return match(cgraph, i, group) || match_chain(cgraph, i, rope);
    }
    const int next = next_computing(cgraph, i); // of an upper bound of logits llama.cpp makes one launch
    return op == GGML_OP_SCALE && next < cgraph->n_nodes && cgraph->nodes[next]->op == GGML_OP_UNARY;
}

// The last node of the launch that llama.cpp makes of node i and what follows it.
static inline int launched_with(const ggml_cgraph *cgraph, int i) {
    const auto then = [&](int at, ggml_op op) {
        const int next = next_computing(cgraph, at);
        return leads_to(cgraph, at, next) && cgraph->nodes[next]->op == op ? next : -1;
    };
    const ggml_op op = cgraph->nodes[i]->op;
    if (op == GGML_OP_RMS_NORM) {
        const int mul = then(i, GGML_OP_MUL), scale = then(i, GGML_OP_SCALE),
                  add = mul >= 0 ? then(mul, GGML_OP_ADD) : -1;
        return std::max({i, mul, scale, add});
    }
    if (op == GGML_OP_ADD || op == GGML_OP_MUL) {
        for (int next = then(i, op); next >= 0; next = then(i, op)) {
            i = next;
        }
    }
    return i;
}

// Launches that llama.cpp makes of a chain and, without it, would not.
static inline int launches_of(const ggml_cgraph *cgraph, const vector_chain &chain) {
    int launches = 0;
    for (int i = chain.first; i <= chain.last; i = next_computing(cgraph, i)) {
        i = launched_with(cgraph, i);
        launches += i <= chain.last;
    }
    return launches;
}

// Does every line read another's result, or is read by another?
static inline bool hangs_together(const vector_chain &chain) {
    bool reads[max_chain_lines] = {};
    for (int l = 0; l < chain.n; l++) {
        for (int from : {chain.line[l].start.line, chain.line[l].add.line}) {
            if (from >= 0) {
                reads[l] = reads[from] = true;
            }
        }
    }
    return chain.n <= 1 || std::all_of(reads, reads + chain.n, [](bool does) { return does; });
}

// All that can follow node i in one launch, that first.
static inline bool find_chain(const ggml_cgraph *cgraph, int i, vector_chain &chain) {
    vector_chain longer;
    chain = {};
    for (int at = i; at < cgraph->n_nodes && !is_wanted_elsewhere(cgraph, at); at = next_computing(cgraph, at)) {
        if (!take(cgraph, at, longer)) {
            break;
        }
        // a norm stays with its weights
        const bool ends = cgraph->nodes[at]->op != GGML_OP_RMS_NORM || launched_with(cgraph, at) == at;
        if (ends && hangs_together(longer)) {
            chain = longer;
        }
    }
    for (int l = 0; l < chain.n; l++) {
        const ggml_tensor *out = chain.line[l].out;
        int uses = 0, all = 0;
        for (int at = chain.first; at <= chain.last; at++) {
            const ggml_tensor *node = cgraph->nodes[at];
            uses += ggml_op_is_empty(node->op) ? 0 : (int) std::count(node->src, node->src + GGML_MAX_SRC, out);
            all = node == out ? ggml_node_get_use_count(cgraph, at) : all;
        }
        chain.line[l].written = all == 0 || all != uses || (out->flags & GGML_TENSOR_FLAG_OUTPUT) != 0;
    }
    const auto norms = [](const chain_line &line) { return line.rms != nullptr; };
    return std::any_of(chain.line, chain.line + chain.n, norms);
}

// A chain that saves a launch.
static inline bool match(const ggml_cgraph *cgraph, int i, vector_chain &chain) {
    return find_chain(cgraph, i, chain) && launches_of(cgraph, chain) > 1;
}

static inline std::vector<const ggml_tensor *> outputs_of(const vector_chain &chain) {
    std::vector<const ggml_tensor *> outputs;
    for (int l = 0; l < chain.n; l++) {
        if (chain.line[l].written) {
            outputs.push_back(chain.line[l].out);
        }
    }
    return outputs;
}

static inline std::vector<const ggml_tensor *> inputs_of(const vector_chain &chain) {
    std::vector<const ggml_tensor *> inputs;
    for (int l = 0; l < chain.n; l++) {
        const chain_line &line = chain.line[l];
        for (const ggml_tensor *t : {line.start.tensor, line.factor, line.add.tensor}) {
            if (t != nullptr) {
                inputs.push_back(t);
            }
        }
    }
    return inputs;
}

// When it runs: what is written may lie where something is read only if that has the same shape: then each value is
// written by the thread that has read it. All is read before anything is written.
static inline bool apart(const vector_chain &chain) {
    const std::vector<const ggml_tensor *> inputs = inputs_of(chain), outputs = outputs_of(chain);
    for (size_t o = 0; o < outputs.size(); o++) {
        for (const ggml_tensor *input : inputs) {
            const bool in_place = input->data == outputs[o]->data && ggml_are_same_shape(input, outputs[o]);
            if (overlap(input, outputs[o]) && !in_place) {
                return false;
            }
        }
        for (size_t other = 0; other < o; other++) {
            if (overlap(outputs[o], outputs[other])) {
                return false;
            }
        }
    }
    return true;
}

// Norms that read what the chain from node i on writes, and that no product computes for itself, come right behind it.
// As with gather_products, all that they read is there, and nothing between changes it.
static inline void gather_norms(ggml_cgraph *cgraph, int i) {
    constexpr int farthest = 48; // nodes
    vector_chain chain;
    if (!find_chain(cgraph, i, chain)) {
        return;
    }
    const int end = std::min(cgraph->n_nodes - 1, chain.last + farthest);
    std::vector<const ggml_tensor *> outputs = outputs_of(chain);
    for (int from = chain.last + 1; from < end && chain.n < max_chain_lines; from++) {
        const ggml_tensor *rms = cgraph->nodes[from], *mul = cgraph->nodes[from + 1];
        const auto changed = [&](const ggml_tensor *out) { return out != rms && base_of(rms) == out; }; // in place
        if (rms->op == GGML_OP_FLASH_ATTN_EXT ||
            (!ggml_op_is_empty(rms->op) && std::any_of(outputs.begin(), outputs.end(), changed))) {
            return;
        }
        const bool fits = rms->op == GGML_OP_RMS_NORM && is_chain_node(rms) && mul->op == GGML_OP_MUL &&
                          is_chain_node(mul) && mul->src[0] == rms && leads_to(cgraph, from, from + 1) &&
                          mul->src[1]->op == GGML_OP_NONE && mul->src[1]->view_src == nullptr &&
                          std::find(outputs.begin(), outputs.end(), rms->src[0]) != outputs.end() &&
                          !is_wanted_elsewhere(cgraph, from);
        const int reader = next_computing(cgraph, from + 1); // what goes on there stays there
        if (fits && !(leads_to(cgraph, from + 1, reader) && is_chain_node(cgraph->nodes[reader]))) {
            ggml_tensor **nodes = cgraph->nodes;
            std::rotate(nodes + chain.last + 1, nodes + from, nodes + from + 2);
            from++;
            find_chain(cgraph, i, chain);
            outputs = outputs_of(chain);
        }
    }
}

} // namespace turbo_cuda
