// Products of weight matrices with the one vector of a decode step, together with what stands around them in a graph.
//
// Between two attentions a token passes some twenty small kernels, most of which last less than starting them does.
// Here a launch normalises its vector (if asked), quantises it to 8 bits as llama.cpp's own products do, and multiplies
// all matrices that read it. Every thread block does the first two for itself: that is less work than waiting for
// another kernel to do it once. Sources of the arithmetic: ggml-cuda's vecdotq.cuh, whose block products are used as
// they are.

#pragma once

#include "joined_limits.h"

#include <cuda_runtime.h>
#include <stdint.h>

namespace turbo_cuda {

// One matrix of `rows` rows, or the same of every expert, `expert_bytes` apart.
struct product_matrix {
    const char *weight, *gate; // gate: null, or a second matrix like it
    float *out;                // [rows], or [experts used][rows]
    const float *add;          // null, or [rows]: what is added to the product
    int64_t row_bytes, expert_bytes;
    int rows;
    int first_block; // set by the launch
};

struct products_args {
    ggml_type type;        // of all matrices
    const float *x;        // [columns]
    const float *norm;     // null, or [columns]: x is divided by its root mean square and multiplied with this first
    float epsilon;         // added to the mean square
    float *normed;         // null, or where the normed vector goes as well
    const int32_t *ids;    // null, or [used]: the experts to take, of one matrix
    int used;              // experts used; 1 without ids
    const char *next;      // null, or the matrix that comes next, of every expert: those taken are fetched ahead
    int64_t next_bytes;    // of one expert
    gate_activation gated; // of all matrices; GATE_NONE: they have no gates
    int columns, n;
    int multiprocessors;
    int staging; // bytes of shared memory a thread block may have where there is a copy engine (sm_90); else 0
    product_matrix matrix[max_products];
};

// The last product of an expert layer, weighted and summed: out = add + sum over e of weights[e] * (matrix[ids[e]]
// x[e]).
struct mix_args {
    ggml_type type;
    const float *x; // [used][columns]
    const int32_t *ids;
    const float *weights; // [used]
    const float *add;     // null, or [rows]
    float *out;           // [rows]
    const char *weight;
    int64_t row_bytes, expert_bytes;
    int used, columns, rows;
    int staging; // as above
};

cudaError_t products(const products_args &args, cudaStream_t stream);
cudaError_t mix_experts(const mix_args &args, cudaStream_t stream);

} // namespace turbo_cuda
