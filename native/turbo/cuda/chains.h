// Norms, factors and sums of the vector of a decode step, or of the few of a short batch, one after another in one
// launch: what stands between two products and lasts less than being launched does.

#pragma once

#include "joined_limits.h"

#include <cuda_runtime.h>
#include <stdint.h>

namespace turbo_cuda {

// Vectors of f32, aligned to 16 bytes, or one number.
struct chain_operand {
    const float *x; // null: there is none
    int64_t stride; // values from a vector's to the next one's; 0: the same for all
    bool number;    // x is one value
    bool early;     // no kernel writes it: it may be read before the one ahead has ended
};

// result = ((start / root mean square) * scale + bias) * factor + add, where what is missing changes nothing.
struct chain_step {
    chain_operand start, factor, add;
    int start_line, add_line; // instead of start and add: the result of a line before, or -1
    bool norm;                // divide by the root mean square
    bool same;                // that of the line before, which has the same start
    float epsilon;            // added to the mean square
    float scale, bias;
    float *out; // null, or [vectors][n]
};

// All that is read of one vector is read by its thread block before anything is written, and every value is written by
// the thread that reads its place: `out` may be `start`, `factor` or `add` of any line if that has as many vectors.
struct chain_args {
    chain_step line[max_chain_lines];
    int lines, vectors, n; // n: values, a multiple of 4, up to max_chain_values
};

cudaError_t run_chain(const chain_args &args, cudaStream_t stream);

} // namespace turbo_cuda
