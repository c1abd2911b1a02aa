// Rotary position embedding of the queries and keys of a token, or of a short batch, with the norm of every head before
// it, in one launch.

#pragma once

#include "joined_limits.h"

#include <cuda_runtime.h>
#include <stdint.h>

namespace turbo_cuda {

// Heads of f32, the values of each contiguous.
struct rope_heads {
    const float *x;
    float *out; // may be x
    const float
        *norm; // null, or [head_dim]: heads are divided by their root mean square and multiplied with this first
    int64_t x_stride, out_stride; // values from a head to the next
    int64_t x_token, out_token;   // and from a token to the next
    float epsilon;                // added to the mean square
    int heads;
};

// Pair i of the first n_dims values of a head is turned by position * base^(-2i / n_dims), as YaRN has it (Peng et al.
// 2023, section 3): values i and i + n_dims / 2 (neox), or 2i and 2i + 1. Values past n_dims stay.
struct rope_args {
    rope_heads tensor[2];    // queries, keys
    const int32_t *position; // [tokens]
    int tokens;
    const float *factors; // null, or [n_dims / 2]: angles are divided by them
    int head_dim, n_dims; // even; head_dim up to max_rope_dim
    bool neox;
    float theta_scale;                              // base^(-2 / n_dims)
    float freq_scale, ext_factor, attention_factor; // of YaRN
    float ramp[2];
};

// Position and factors are there before the launch.
cudaError_t rope_together(const rope_args &args, cudaStream_t stream);

} // namespace turbo_cuda
