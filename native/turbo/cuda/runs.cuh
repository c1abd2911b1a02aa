// Which row of the centres of runs a cell lacks, in the kernels that write and lift keys.

#pragma once

#include "attend.h"

#include <cuda_fp16.h>

namespace turbo_cuda {

// Null without runs. Cells count on from stream to stream.
static __device__ __forceinline__ const __half *run_of_cell(const key_runs &runs, int64_t cell) {
    if (runs.rows == nullptr) {
        return nullptr;
    }
    const uint32_t in_stream = (uint32_t) cell % (uint32_t) runs.stream_cells;
    const uint32_t row = runs.cells_each > 0 ? in_stream / (uint32_t) runs.cells_each : 0;
    return reinterpret_cast<const __half *>(runs.rows + row * runs.stride);
}

} // namespace turbo_cuda
