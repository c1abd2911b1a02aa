// The query side: rotate, quantise, lay out as tensor-core fragments.
//
// For codes a value becomes a signed byte: a rotated query is Gaussian, so the step is 1/40 of its standard deviation
// and the error of a score 1/25 of what the keys' own codes cost with 3 bits, 1/12 with 4. q8_0 keys are more exact,
// for them it is two bytes.

#pragma once

#include "attend_params.cuh"
#include "ptx.cuh"
#include "tables.cuh"

namespace turbo_cuda {

// Walsh-Hadamard over the n registers of a lane, then over `lanes` neighbouring lanes.
template <int n, int lanes> static __device__ __forceinline__ void hadamard_lanes(float (&x)[n]) {
#pragma unroll
    for (int h = 1; h < n; h *= 2) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            if ((i & h) == 0) {
                const float a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
        }
    }
#pragma unroll
    for (int bit = 1; bit < lanes; bit *= 2) {
        const float sign = (threadIdx.x & bit) ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < n; i++) {
            x[i] = fmaf(sign, x[i], __shfl_xor_sync(0xffffffffu, x[i], bit));
        }
    }
}

static __device__ __forceinline__ uint32_t half_pair(__half low, __half high) {
    return (uint32_t) __half_as_ushort(low) | (uint32_t) __half_as_ushort(high) << 16;
}

// Sign word w of the rotation of a block.
template <int block_values> static __device__ __forceinline__ uint32_t sign_word(int w) {
    constexpr uint32_t a = book::turbo_signs_128[0], b = book::turbo_signs_128[1], c = book::turbo_signs_128[2],
                       d = book::turbo_signs_128[3];
    constexpr uint32_t e = book::turbo_signs_64[0], f = book::turbo_signs_64[1];
    if (block_values == 128) {
        return w < 2 ? (w == 0 ? a : b) : (w == 2 ? c : d);
    }
    return w == 0 ? e : f;
}

static __device__ __forceinline__ float flip_sign(float x, uint32_t signs, int bit) {
    return __uint_as_float(__float_as_uint(x) ^ ((signs >> bit) << 31));
}

// A query for K in plain formats: each unit of four values as f16, and what rounding left of it (attend_half.cuh).
template <class shape> static __device__ __forceinline__ void split_query(const float (&x)[shape::block_values / 16],
                                                                          float factor, int column, uint4 *fragments) {
    constexpr int n = shape::block_values / 16;
#pragma unroll
    for (int i = 0; i < n / 4; i++) {
        __half high[4], low[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float value = x[4 * i + j] * factor;
            high[j] = __float2half_rn(value);
            low[j] = __float2half_rn(value - __half2float(high[j]));
        }
        const int first = (threadIdx.x & 15) * n + 4 * i;
        fragments[shape::register_of(first) * 32 + 4 * column + shape::quarter_of(first)] =
            make_uint4(half_pair(high[0], high[2]), half_pair(high[1], high[3]), half_pair(low[0], low[2]),
                       half_pair(low[1], low[3]));
    }
}

// Lay out four neighbouring values of a query, from `value` on.
template <class shape>
static __device__ __forceinline__ void store_query(uint4 *fragments, int column, int value, uint32_t bytes) {
    const int t = shape::quarter_of(value), r = shape::register_of(value);
    reinterpret_cast<uint32_t *>(fragments + r / 4 * 32 + 4 * column + t)[r & 3] = bytes;
}

// For q8_0: their upper bytes and their lower ones, turned within their block, in pairs (attend_q8.cuh).
static __device__ __forceinline__ void store_query_q8(uint4 *fragments, int column, int value, uint32_t high,
                                                      uint32_t low, int skew) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int block = value / 32, place = (value + 2 * i + q8_turn(block, skew)) & 31;
        uint16_t *at = reinterpret_cast<uint16_t *>(fragments + block * 32 + 4 * column + place % 16 / 4) +
                       place / 16 * 2 + place % 4 / 2;
        at[0] = (uint16_t) (high >> 16 * i);
        at[4] = (uint16_t) (low >> 16 * i);
    }
}

// The byte `index` of four words.
template <int index> static __device__ __forceinline__ uint32_t gather_bytes(const uint32_t (&words)[4]) {
    constexpr uint32_t pick = index | (4 + index) << 4;
    return byte_permute(byte_permute(words[0], words[1], pick), byte_permute(words[2], words[3], pick), 0x5410);
}

// Prepare one block of column `column` (0-7) of a tile; half a warp does it, a lane has block_values / 16
// values in a row.
// fragments[i*32 + 4*column + t] = parts 2i and 2i + 1 of quarter t (2 registers each), or high and low bytes (2
// registers each) of block i of q8_0, whose head begins `skew` bytes from a multiple of 16; scales[column] = value of
// one integer step; sums[column] = sum of the bytes, for shapes with two query_rows.
template <class shape> static __device__ __forceinline__ void prepare_query(float (&x)[shape::block_values / 16],
                                                                            bool rotate, float post_scale, int column,
                                                                            uint4 *fragments, float *scales,
                                                                            float *sums, int skew) {
    constexpr int n = shape::block_values / 16;
    const int lane = threadIdx.x & 15, first = lane * n;
    const bool halves = shape::halves_keys && !rotate;
    if (rotate) {
        const uint32_t signs = sign_word<shape::block_values>(first / 32) >> (first % 32);
#pragma unroll
        for (int i = 0; i < n; i++) {
            x[i] = flip_sign(x[i], signs, i);
        }
        hadamard_lanes<n, 16>(x);
    }
    float top = 0.0f;
#pragma unroll
    for (int i = 0; i < n; i++) {
        top = fmaxf(top, fabsf(x[i]));
    }
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    }
    constexpr bool two_bytes = shape::k_format == KV_Q8_0;
    constexpr float steps = two_bytes ? 127 * 256 + 127 : 127;
    if (lane == 0) {
        scales[column] = top * post_scale * (halves ? 1.0f : 1.0f / steps);
    }
    if (halves) {
        split_query<shape>(x, top > 0.0f ? 1.0f / top : 0.0f, column, fragments);
        return;
    }
    const float to_int = top > 0.0f ? __fdividef(steps, top) : 0.0f;
    int sum = 0;
#pragma unroll
    for (int i = 0; i < n / 4; i++) {
        uint32_t rounded[4], upper[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            // Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
            rounded[j] = __float_as_uint(fmaf(x[4 * i + j], to_int, 12582912.0f));
            upper[j] = rounded[j] + 128;
        }
        if constexpr (two_bytes) {
            store_query_q8(fragments, column, first + 4 * i, gather_bytes<1>(upper), gather_bytes<0>(rounded), skew);
        } else {
            const uint32_t bytes = gather_bytes<0>(rounded);
            sum = __dp4a((int) bytes, 0x01010101, sum);
            store_query<shape>(fragments, column, first + 4 * i, bytes);
        }
    }
    if constexpr (shape::query_rows == 2) {
#pragma unroll
        for (int step = 1; step < 16; step *= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        }
        if (lane == 0) {
            sums[column] = (float) sum;
        }
    }
}

} // namespace turbo_cuda
