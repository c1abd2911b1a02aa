// What launches that join nodes of a graph can do: known to the kernels and to those who look for such nodes.

#pragma once

#include "ggml.h"

#include <stdint.h>

namespace turbo_cuda {

// Matrices that are multiplied with a vector: types (ggml's name, that of llama.cpp's block product), and how many go
// into one launch.
#define TURBO_PRODUCT_TYPES(DO)                                                                                        \
    DO(Q4_0, q4_0) DO(Q4_1, q4_1) DO(Q5_0, q5_0) DO(Q5_1, q5_1) DO(Q8_0, q8_0)                                         \
    DO(Q2_K, q2_K) DO(Q3_K, q3_K) DO(Q4_K, q4_K) DO(Q5_K, q5_K) DO(Q6_K, q6_K)                                         \
    DO(IQ4_NL, iq4_nl) DO(IQ4_XS, iq4_xs) DO(MXFP4, mxfp4)
static constexpr int max_products = 4, max_mixed_experts = 16;
// Vectors of a short batch that a launch multiplies, and what the columns of several are a multiple of.
static constexpr int max_vectors = 8, batch_columns = 256;

// Of a gated layer: out = activation(gate x) * (weight x).
enum gate_activation { GATE_NONE, GATE_SILU, GATE_GELU, GATE_RELU };

// Can a matrix of this type be read? Quantised ones; f32 without a gate. Columns are a multiple of the type's block,
// and all of a vector (of `vectors`, one an expert) has room in the shared memory of any device.
static inline bool products_read(ggml_type type, int64_t columns, bool gated, int64_t vectors = 1) {
    constexpr int64_t most = 40 << 10; // values: 45 KB, in blocks of 8 bits
    if (columns * vectors > most || columns % 32 != 0) {
        return false;
    }
    switch (type) {
#define TURBO_READS(TYPE, NAME) case GGML_TYPE_##TYPE:
        TURBO_PRODUCT_TYPES(TURBO_READS)
#undef TURBO_READS
        return columns % ggml_blck_size(type) == 0;
        case GGML_TYPE_F32: return !gated;
        default: return false;
    }
}

// Values of a head that is turned.
static constexpr int max_rope_dim = 512;

} // namespace turbo_cuda
