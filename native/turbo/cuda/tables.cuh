// The codebooks and signs of native/turbo/codebooks.inc, as the kernels need them.

#pragma once

#include "../types.h"

#include <stdint.h>

namespace turbo_cuda {
namespace book {
#define TURBO_TABLE static constexpr
#include "../codebooks.inc"
#undef TURBO_TABLE
} // namespace book

// Bytes i..i+3 of a codebook as one register, for byte_permute.
static __host__ __device__ constexpr uint32_t pack4(const int8_t *table, int i) {
    return (uint32_t) (uint8_t) table[i] | (uint32_t) (uint8_t) table[i + 1] << 8 |
           (uint32_t) (uint8_t) table[i + 2] << 16 | (uint32_t) (uint8_t) table[i + 3] << 24;
}

} // namespace turbo_cuda
