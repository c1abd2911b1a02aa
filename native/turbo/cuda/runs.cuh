// Which row of the centres of runs a cell lacks, in the kernels that write and lift keys.

#pragma once

#include "attend.h"

#include <cuda_fp16.h>

namespace turbo_cuda {

// Cells count on from stream to stream. Not inlined: kernels that write have a copy of what they do for every format,
// and their code is too long for the caches as it is.
static __device__ __noinline__ uint32_t row_of_cell(uint32_t cell, uint32_t stream_cells, uint32_t cells_each) {
    return cells_each > 0 ? cell % stream_cells / cells_each : 0;
}

// Null without runs.
static __device__ __forceinline__ const __half *run_of_cell(const key_runs &runs, int64_t cell) {
    if (runs.rows == nullptr) {
        return nullptr;
    }
    const uint32_t row = row_of_cell((uint32_t) cell, (uint32_t) runs.stream_cells, (uint32_t) runs.cells_each);
    return reinterpret_cast<const __half *>(runs.rows + row * runs.stride);
}

} // namespace turbo_cuda
