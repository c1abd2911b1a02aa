// The query side: rotate, quantise to 16-bit integers (two signed bytes), lay out as tensor-core fragments.

#pragma once

#include "attend_params.cuh"
#include "ptx.cuh"
#include "tables.cuh"

namespace turbo_cuda {

// Walsh-Hadamard over the registers of a lane, then over the four lanes that share a block.
template <int n> static __device__ __forceinline__ void hadamard_quarters(float (&x)[n]) {
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
    for (int lane_bit = 1; lane_bit <= 2; lane_bit *= 2) {
        const float sign = (threadIdx.x & lane_bit) ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < n; i++) {
            x[i] = fmaf(sign, x[i], __shfl_xor_sync(0xffffffffu, x[i], lane_bit));
        }
    }
}

// Sign word w of the rotation of a block.
template <int block_values> static __device__ __forceinline__ uint32_t sign_word(int w) {
    constexpr uint32_t a = book::turbo_signs_128[0], b = book::turbo_signs_128[1], c = book::turbo_signs_128[2], d = book::turbo_signs_128[3];
    constexpr uint32_t e = book::turbo_signs_64[0], f = book::turbo_signs_64[1];
    if (block_values == 128) {
        return w < 2 ? (w == 0 ? a : b) : (w == 2 ? c : d);
    }
    return w == 0 ? e : f;
}

static __device__ __forceinline__ float flip_sign(float x, uint32_t signs, int bit) {
    return __uint_as_float(__float_as_uint(x) ^ ((signs >> bit) << 31));
}

// Prepare one block of the eight columns of a tile. Lane 4c+t holds quarter t of column c.
// fragments[part*32 + lane] = high bytes (2 registers), low bytes (2 registers); scales[c] = value of one integer step.
template <class shape>
static __device__ void prepare_query(const float *q_block, bool valid, bool rotate, float post_scale, uint4 *fragments, float *scales) {
    constexpr int n = shape::values_per_lane;
    const int lane = threadIdx.x & 31, t = lane & 3;
    float x[n];
#pragma unroll
    for (int r = 0; r < n / 4; r++) {
        const float4 v = valid ? *reinterpret_cast<const float4 *>(q_block + shape::position(t, r, 0)) : make_float4(0, 0, 0, 0);
        x[4 * r] = v.x, x[4 * r + 1] = v.y, x[4 * r + 2] = v.z, x[4 * r + 3] = v.w;
    }
    if (rotate) {
        const uint32_t signs = sign_word<shape::block_values>(n == 32 ? t : t >> 1);
#pragma unroll
        for (int i = 0; i < n; i++) {
            x[i] = flip_sign(x[i], signs, shape::position(n == 32 ? 0 : t & 1, i / 4, i % 4));
        }
        hadamard_quarters(x);
    }
    float top = 0.0f;
#pragma unroll
    for (int i = 0; i < n; i++) {
        top = fmaxf(top, fabsf(x[i]));
    }
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const float to_int = top > 0.0f ? 32639.0f / top : 0.0f; // 32639 = 127 * 256 + 127
#pragma unroll
    for (int part = 0; part < shape::parts; part++) {
        uint32_t high[2] = {0, 0}, low[2] = {0, 0};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int value = __float2int_rn(x[8 * part + i] * to_int);
            const int upper = (value + 128) >> 8;
            high[i / 4] |= (uint32_t) (upper & 255) << (8 * (i & 3));
            low[i / 4] |= (uint32_t) ((value - upper * 256) & 255) << (8 * (i & 3));
        }
        fragments[part * 32 + lane] = make_uint4(high[0], high[1], low[0], low[1]);
    }
    if (t == 0) {
        scales[lane >> 2] = top * post_scale * (1.0f / 32639.0f);
    }
}

} // namespace turbo_cuda
