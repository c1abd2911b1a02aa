// The two products of one tile of 16*slices tokens: scores (K x Q) and values (V x P), both on int8 tensor cores.

#pragma once

#include "attend_params.cuh"
#include "decode.cuh"

namespace turbo_cuda {

// Where a lane finds its rows of a staged tile: rows g, g + 8, g + 16, ... with g = lane / 4. Eight tokens further is a
// multiple of 16 bytes in the cache, so neither the start within a 16-byte unit nor any shift changes from row to row.
struct tile_rows {
    const uint8_t *shared;
    uint32_t first; // byte offset of row g, the head included
    uint32_t step;  // bytes from a row to the one eight further
};

// Which tokens of a tile are real: the first `count`, without low..high.
struct tile_limits {
    int count, low, high;

    template <class shape> __device__ __forceinline__ bool whole() const {
        return count >= shape::keys && (low >= shape::keys || high < 0);
    }
    __device__ __forceinline__ bool real(int token) const { return token < count && (token < low || token > high); }
};

// Does a tile of `count` tokens reach into its m-th slice of 16? The first is taken for granted.
static __device__ __forceinline__ bool reaches(int count, int m) {
    return m == 0 || 16 * m < count;
}

// Scores of 16*slices tokens x 8*tiles columns, where a tile of `count` tokens reaches. s[m][tile][i]: token 16m + g
// (i < 2) or 16m + 8 + g, column 2t + (i & 1), where g = lane / 4 and t = lane % 4.
template <class reader, class shape>
static __device__ __forceinline__ void tile_scores(float (&s)[shape::slices][shape::tiles][4], const reader &codes,
                                                   const tile_rows &rows, int count, int block_bytes,
                                                   const uint4 *fragments, const float *scales) {
    const int lane = threadIdx.x & 31, t = lane & 3;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
        const uint32_t block = rows.first + b * block_bytes;
        const code_place place = reader::place(rows.shared, block, t);
        uint4 q[shape::tiles][shape::parts / 2];
        float q_scale[shape::tiles][2];
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            const int at = n * shape::blocks + b;
#pragma unroll
            for (int i = 0; i < shape::parts / 2; i++) {
                q[n][i] = fragments[at * shape::fragments + i * 32 + lane];
            }
            q_scale[n][0] = scales[at * 8 + 2 * t];
            q_scale[n][1] = scales[at * 8 + 2 * t + 1];
        }
#pragma unroll
        for (int m = 0; m < shape::slices; m++) {
            // Scalar codes are unpacked faster without the question. Left unset, the scores would cost registers.
            if (shape::reads_trellis && !reaches(count, m)) {
#pragma unroll
                for (int i = 0; i < 4 * shape::tiles; i++) {
                    (&s[m][0][0])[i] = 0.0f;
                }
                continue;
            }
            const uint32_t first = 2 * m * rows.step, second = first + rows.step;
            uint32_t w0[reader::words], w1[reader::words];
            reader::load(w0, place, first);
            reader::load(w1, place, second);
            int32_t sum[shape::tiles][4] = {};
            auto multiply = [&](int part, const uint32_t(&a)[4]) {
#pragma unroll
                for (int n = 0; n < shape::tiles; n++) {
                    const uint4 &two = q[n][part / 2];
                    mma_s8_s8(sum[n], a, part % 2 == 0 ? two.x : two.z, part % 2 == 0 ? two.y : two.w);
                }
            };
            uint32_t a[4];
            codes.template decode<0>(w0, a[0], a[2]);
            codes.template decode<0>(w1, a[1], a[3]);
            multiply(0, a);
            codes.template decode<1>(w0, a[0], a[2]);
            codes.template decode<1>(w1, a[1], a[3]);
            multiply(1, a);
            if (shape::parts == 4) {
                codes.template decode<2>(w0, a[0], a[2]);
                codes.template decode<2>(w1, a[1], a[3]);
                multiply(2 % shape::parts, a);
                codes.template decode<3>(w0, a[0], a[2]);
                codes.template decode<3>(w1, a[1], a[3]);
                multiply(3 % shape::parts, a);
            }
            const float d0 = fminf(reader::scale(rows.shared, block + first), 65504.0f);
            const float d1 = fminf(reader::scale(rows.shared, block + second), 65504.0f);
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float product = (float) sum[n][i] * ((i < 2 ? d0 : d1) * q_scale[n][i & 1]);
                    s[m][n][i] = b == 0 ? product : s[m][n][i] + product;
                }
            }
        }
    }
}

// Probabilities x block scale of a tile as bytes, laid out as B fragments. The token order inside a fragment is that of
// transpose_8x8 with two tokens an element: 2t, 8+2t, 2t+1, 8+2t+1. The step is set by the largest product, so a token
// that counts for nothing, hidden or beyond the end, may have any scale.
//
// Rounded to the nearest, tokens below half a step would be lost together, however many there are. So a token is
// rounded up from a threshold of its own, one of 16 in turns (dithering): what many small ones add up to is kept.
template <class shape> struct probability_fragments {
    uint32_t bytes[shape::tiles][shape::slices];
    float unit; // value of one integer step

    __device__ __forceinline__ void build(const float (&p)[shape::slices][shape::tiles][4],
                                          const float (&d)[2 * shape::slices]) {
        float x[shape::slices][shape::tiles][4], top = 1e-30f; // 65535 / top stays finite
#pragma unroll
        for (int i = 0; i < 4 * shape::slices * shape::tiles; i++) {
            // what lies beyond the end may be any number, or none
            const float scale = fminf(fabsf(d[i / (4 * shape::tiles) * 2 + i % 4 / 2]), 65504.0f);
            top = fmaxf(top, (&x[0][0][0])[i] = (&p[0][0][0])[i] * scale);
        }
#pragma unroll
        for (int step = 4; step <= 16; step *= 2) {
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
        }
        unit = top * (1.0f / 255.0f);
        const float to_int = __fdividef(255.0f, top);
        // Adding 2^15 leaves the integer in byte 1 of the mantissa, rounded down; what a token's value is lifted by
        // comes with it.
        const int g = (threadIdx.x & 31) >> 2;
        const float lift[2] = {32768.0f + (g + 0.25f) / 8, 32768.0f + (g + 0.75f) / 8};
#pragma unroll
        for (int m = 0; m < shape::slices; m++) {
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
                uint32_t integer[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    integer[i] = __float_as_uint(fmaf(x[m][n][i], to_int, lift[i / 2]));
                }
                const uint32_t even = byte_permute(integer[0], integer[2], 0x0051),
                               odd = byte_permute(integer[1], integer[3], 0x0051);
                bytes[n][m] = transpose_8x8(byte_permute(even, odd, 0x5410));
            }
        }
    }
};

// One part (8 values a lane: two products of 16 output values) of out += V x P.
template <class reader, class shape, int part> static __device__ __forceinline__ void
tile_values_part(float (&out)[shape::values_per_lane / 4][shape::tiles][4], const reader &codes, int count,
                 const uint32_t (&w)[2 * shape::slices][reader::words], const probability_fragments<shape> &p,
                 const float (&weight)[shape::tiles][2]) {
    int32_t sum[2][shape::tiles][4] = {};
#pragma unroll
    for (int k = 0; k < (shape::slices + 1) / 2; k++) {
        if (!reaches(count, 2 * k)) {
            continue;
        }
        uint32_t a[2][4] = {};
#pragma unroll
        for (int half = 0; half < (shape::slices > 1 ? 2 : 1); half++) {
            uint32_t x[2], y[2];
            codes.template decode<part>(w[4 * k + 2 * half], x[0], x[1]);
            codes.template decode<part>(w[4 * k + 2 * half + 1], y[0], y[1]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t tx = transpose_8x8(x[j]), ty = transpose_8x8(y[j]);
                a[j][2 * half] = byte_permute(tx, ty, 0x6240);
                a[j][2 * half + 1] = byte_permute(tx, ty, 0x7351);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
                constexpr int last = shape::slices - 1; // one slice alone leaves the upper half of the product zero
                mma_s8_u8(sum[j][n], a[j], p.bytes[n][2 * k], p.bytes[n][2 * k < last ? 2 * k + 1 : last]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out[2 * part + j][n][i] = fmaf((float) sum[j][n][i], weight[n][i & 1], out[2 * part + j][n][i]);
            }
        }
    }
}

// out += V x P for the real ones of 16*slices tokens. p as s of tile_scores; weight[tile][i]: factor of column 2t
// + i. out[b][r][tile][i]: value position(g / 2, r, 2 * (g & 1) + (i >= 2)) of block b, column 2t + (i & 1).
template <class reader, class shape> static __device__ __forceinline__ void
tile_values(float (&out)[shape::blocks][shape::values_per_lane / 4][shape::tiles][4], const reader &codes,
            const tile_rows &rows, const tile_limits &limits, int block_bytes,
            const float (&p)[shape::slices][shape::tiles][4], const float (&weight)[shape::tiles][2]) {
    const int lane = threadIdx.x & 31, t = lane & 3;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
        const uint32_t block = rows.first + b * block_bytes;
        const code_place place = reader::place(rows.shared, block, t);
        uint32_t w[2 * shape::slices][reader::words];
        float d[2 * shape::slices];
#pragma unroll
        for (int i = 0; i < 2 * shape::slices; i++) {
            reader::load(w[i], place, i * rows.step);
            d[i] = reader::scale(rows.shared, block + i * rows.step);
        }
        probability_fragments<shape> fragments;
        fragments.build(p, d);
        float factor[shape::tiles][2];
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            factor[n][0] = weight[n][0] * fragments.unit;
            factor[n][1] = weight[n][1] * fragments.unit;
        }
        tile_values_part<reader, shape, 0>(out[b], codes, limits.count, w, fragments, factor);
        tile_values_part<reader, shape, 1>(out[b], codes, limits.count, w, fragments, factor);
        if (shape::parts == 4) {
            tile_values_part<reader, shape, shape::parts == 4 ? 2 : 0>(out[b], codes, limits.count, w, fragments,
                                                                       factor);
            tile_values_part<reader, shape, shape::parts == 4 ? 3 : 0>(out[b], codes, limits.count, w, fragments,
                                                                       factor);
        }
    }
}

} // namespace turbo_cuda
