// Products of weight matrices with the one vector of a decode step, or the few of a short batch, together with what
// stands around them in a graph.
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
    float *out;                // [vectors][rows], of experts [vectors][used][rows]
    const float *add;          // null, or like `out` (not of experts): what is added to the product
    int64_t row_bytes, expert_bytes;
    int rows;
    int first_block; // set by the launch
};

struct products_args {
    ggml_type type;        // of all matrices
    const float *x;        // [vectors][columns]
    int vectors;           // up to max_vectors; several have gates only where they have experts, and then no norm
    const float *norm;     // null, or [columns]: x is divided by its root mean square and multiplied with this first
    float epsilon;         // added to the mean square
    float *normed;         // null, or where the normed vector goes as well
    const int32_t *ids;    // null, or [vectors][used]: the experts to take, of one matrix
    int64_t ids_stride;    // values from a vector's to the next one's
    int used;              // experts a vector uses; 1 without ids
    const char *next;      // null, or the matrix that comes next, of every expert: those taken are fetched ahead
    int64_t next_bytes;    // of one expert
    gate_activation gated; // of all matrices; GATE_NONE: they have no gates
    int columns, n;
    int multiprocessors;
    int staging; // bytes of shared memory a thread block may have where there is a copy engine (sm_90); else 0
    product_matrix matrix[max_products];
};

// The last product of an expert layer, weighted and summed: out = add + sum over e of weights[e] * (matrix[ids[e]]
// x[e]), of every vector.
struct mix_args {
    ggml_type type;
    const float *x;       // [vectors][used][columns]
    const int32_t *ids;   // [vectors][used]
    int64_t ids_stride;   // as above
    const float *weights; // [vectors][used]
    const float *scale;   // null, or [experts]: what each one's product counts besides
    const float *add;     // null, or [vectors][rows]
    float *out;           // [vectors][rows]
    const char *weight;
    int64_t row_bytes, expert_bytes;
    int vectors, used, columns, rows;
    int staging; // as above
};

// Can several vectors be multiplied in one launch, and does it pay? It does for experts, and for matrices that are soon
// read.
bool products_pay(const products_args &args);
cudaError_t products(const products_args &args, cudaStream_t stream);
cudaError_t mix_experts(const mix_args &args, cudaStream_t stream);

} // namespace turbo_cuda
