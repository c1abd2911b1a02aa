// Looking at the nodes of a graph.

#pragma once

#include "ggml-impl.h"
#include "ggml.h"

namespace turbo_cuda {

// The tensor behind a view, or the tensor itself.
static inline const ggml_tensor *base_of(const ggml_tensor *t) {
    return t->view_src != nullptr ? t->view_src : t;
}

// The next node after i that computes something, n_nodes if there is none.
static inline int next_computing(const ggml_cgraph *cgraph, int i) {
    do {
        i++;
    } while (i < cgraph->n_nodes && ggml_op_is_empty(cgraph->nodes[i]->op));
    return i;
}

static inline bool computes(const ggml_tensor *node) {
    return (node->flags & GGML_TENSOR_FLAG_COMPUTE) != 0;
}

// Do they share memory?
static inline bool overlap(const ggml_tensor *a, const ggml_tensor *b) {
    const char *first = (const char *) a->data, *second = (const char *) b->data;
    return first < second + ggml_nbytes(b) && second < first + ggml_nbytes(a);
}

} // namespace turbo_cuda
