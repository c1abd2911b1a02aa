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
    int ids_ne[2]; // of dims 1 and 2
    int ids_64;    // i64, else i32
    int early; // ids and the vectors below were there before the launch before this one: only the rows are waited for
    const float *factor; // every row counts times these (row_values of them), or null
    const float *centre; // then subtracted from every row (row_values of them), or null
    key_runs runs;       // likewise, by the row of the target it goes to; with runs there is no centre
    int format, block;   // turbo format or q8_0, values a block (of q8_0: 64 or 128, whole blocks of 32)
    int row_values, ne1, ne2, n_rows;
};

// Thread blocks of that launch.
int write_blocks(const write_tensor &first, const write_tensor *second);

// Encode one or two tensors in one launch (`second` may be null). The next launch may start once
// everything before this one has ended and the input has been read.
cudaError_t write_rows(const write_tensor &first, const write_tensor *second, cudaStream_t stream);

// Encode up to most_together tensors, of a few rows each, in one launch.
static constexpr int most_together = 16;
cudaError_t write_together(const write_tensor *tensors, int n, cudaStream_t stream);

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
    key_runs runs; // lift_rows and add_runs only: what the source lacks is added; cell i1, head i2
};
cudaError_t read_rows(const read_tensor &args, cudaStream_t stream);

// The same for whole tensors to f16 without ids, faster. Target rows 16-byte aligned.
cudaError_t lift_rows(const read_tensor &args, cudaStream_t stream);

// Where nothing encodes or decodes keys in the same launch (runs.cu): f32 rows plus `sign` times the centres of their
// cells.
struct run_change {
    const float *source;
    float *target;
    int64_t source_stride, target_stride; // in values
    const int64_t *ids;                   // cell of a row, or null: rows are cells
    int row_values, n_rows;
    float sign;
    key_runs runs;
};
cudaError_t change_by_runs(const run_change &args, cudaStream_t stream);

// f16 rows at the target plus the centres of theirs, in place.
cudaError_t add_runs(const read_tensor &args, cudaStream_t stream);

} // namespace turbo_cuda
