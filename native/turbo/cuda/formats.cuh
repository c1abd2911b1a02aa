// The codebooks as types: what a kernel templated on a format needs to know about it.

#pragma once

#include "attend.h"
#include "tables.cuh"

namespace turbo_cuda {

// Device copies of the codebooks, for look-ups by a run-time index.
namespace device_book {
#define TURBO_TABLE static __device__ const
#include "../codebooks.inc"
#undef TURBO_TABLE
} // namespace device_book

static __host__ __device__ constexpr bool is_trellis(int format) {
    return format >= KV_TURBO2_TCQ && format <= KV_TURBO4_TCQ;
}

#define TURBO_CUDA_FORMAT(NAME, name, k, L, V)                                                                   \
    struct format_##name {                                                                                       \
        static constexpr int id = KV_##NAME, bits = k, window = L, mantissa = L ? 5 : 10;                        \
        /* fractions of a codebook step that encoding works with, as on the CPU */                               \
        static constexpr int substeps = L ? 64 : 4 << k;                                                         \
        static __device__ __forceinline__ int entry(int index) { return device_book::turbo_book_##name[index]; } \
        /* rotated value = scale * unit(1) * entry; unit(n) = unit(1) / sqrt(n) for a block of n */              \
        static __host__ __device__ constexpr float unit(int n) {                                                 \
            return n == 128 ? TURBO_UNIT_128_##name : n == 64 ? TURBO_UNIT_64_##name : TURBO_UNIT_##name;        \
        }                                                                                                        \
        static __host__ __device__ constexpr int block_bytes(int n) { return TURBO_BLOCK_BYTES(k, n); }          \
    };
#define TURBO_CUDA_FORMAT_ROW(X, NAME, name, k, L, V) TURBO_CUDA_FORMAT(NAME, name, k, L, V)
TURBO_FAMILIES(TURBO_CUDA_FORMAT_ROW, )
#undef TURBO_CUDA_FORMAT_ROW
#undef TURBO_CUDA_FORMAT

} // namespace turbo_cuda
