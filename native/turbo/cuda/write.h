// Writing rows of K and V into compressed caches, and reading them back: what a caller passes.

#pragma once

#include "attend.h"

namespace turbo_cuda {

// Rows of f32 (or, for copies, f16) to encode. Row r of n_rows has index (i1, i2, i3) = r in base (ne1, ne2).
struct write_tensor {
    const char *source;       // row values contiguous
    int64_t source_stride[3]; // bytes, dims 1-3
    int source_half;          // the source is f16
    char *target;             // blocks of a row contiguous
    int64_t target_stride[3];
    const char *ids; // row index in dim 1 of the target for (i1, i2 % ids_ne[1], i3 % ids_ne[2]), or null: i1
    int64_t ids_stride[3];
    int ids_ne[2];       // of dims 1 and 2
    int ids_64;          // i64, else i32
    const float *factor; // every row counts times these (row_values of them), or null
    const float *centre; // then subtracted from every row (row_values of them), or null
    int format, block;   // turbo format or q8_0, values a block (of q8_0: 64 or 128, whole blocks of 32)
    int row_values, ne1, ne2, n_rows;
};

// Thread blocks of that launch.
int write_blocks(const write_tensor &first, const write_tensor *second);

// Encode one or two tensors in one launch (`second` may be null). The next launch may start once
// everything before this one has ended and the input has been read.
cudaError_t write_rows(const write_tensor &first, const write_tensor *second, cudaStream_t stream);

// Blocks to f16 or f32. Row r has index (i1, i2, i3) = r in base (ne1, ne2); strides in bytes.
struct read_tensor {
    const char *source;
    int64_t source_stride[3];
    char *target;
    int64_t target_stride[3];
    const char *ids; // i32 row of the source for (i1, i2, i3), or null
    int64_t ids_stride[3];
    int target_half;
    int format, block, row_values, ne1, ne2;
    int64_t n_rows;
};
cudaError_t read_rows(const read_tensor &args, cudaStream_t stream);

// The same for whole tensors to f16 without ids, faster. Target rows 16-byte aligned.
cudaError_t lift_rows(const read_tensor &args, cudaStream_t stream);

} // namespace turbo_cuda
