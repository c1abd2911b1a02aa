// The two products of one tile of 64 tokens: scores (K x Q) and values (V x P), both on int8 tensor cores.

#pragma once

#include "attend_params.cuh"
#include "decode.cuh"

namespace turbo_cuda {

// Where the rows of a staged tile lie in shared memory.
struct tile_rows {
    const uint8_t *shared;
    uint32_t base;      // byte offset of the first slot, the head included
    uint32_t pitch;     // bytes between slots
    uint32_t skew;      // start of row 0 within its 16-byte unit
    uint32_t skew_step; // what each further row adds to it (mod 16), 0 for contiguous tiles

    __device__ __forceinline__ uint32_t offset(int row) const {
        return base + row * pitch + ((skew + row * skew_step) & 15u);
    }
};

// Scores of 64 tokens x 8*tiles columns. s[m][tile][i]: token 16m + g (i < 2) or 16m + 8 + g, column 2t + (i & 1),
// where g = lane / 4 and t = lane % 4.
template <class reader, class shape>
static __device__ __forceinline__ void tile_scores(float (&s)[4][shape::tiles][4], const tile_rows &rows, int block_bytes,
                                                   const uint4 *fragments, const float *scales) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
        uint4 q[shape::tiles][shape::parts];
        float q_scale[shape::tiles][2];
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            const int block = n * shape::blocks + b;
#pragma unroll
            for (int part = 0; part < shape::parts; part++) {
                q[n][part] = fragments[block * shape::fragments + part * 32 + lane];
            }
            q_scale[n][0] = scales[block * 8 + 2 * t];
            q_scale[n][1] = scales[block * 8 + 2 * t + 1];
        }
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const uint32_t first = rows.offset(16 * m + g) + b * block_bytes, second = rows.offset(16 * m + 8 + g) + b * block_bytes;
            uint32_t w0[reader::words], w1[reader::words];
            reader::load(w0, rows.shared, first, t);
            reader::load(w1, rows.shared, second, t);
            int32_t high[shape::tiles][4] = {}, low[shape::tiles][4] = {};
            auto multiply = [&](int part, const uint32_t(&a)[4]) {
#pragma unroll
                for (int n = 0; n < shape::tiles; n++) {
                    mma_s8_s8(high[n], a, q[n][part].x, q[n][part].y);
                    mma_s8_s8(low[n], a, q[n][part].z, q[n][part].w);
                }
            };
            uint32_t a[4];
            reader::template decode<0>(w0, a[0], a[2]);
            reader::template decode<0>(w1, a[1], a[3]);
            multiply(0, a);
            reader::template decode<1>(w0, a[0], a[2]);
            reader::template decode<1>(w1, a[1], a[3]);
            multiply(1, a);
            if (shape::parts == 4) {
                reader::template decode<2>(w0, a[0], a[2]);
                reader::template decode<2>(w1, a[1], a[3]);
                multiply(2 % shape::parts, a);
                reader::template decode<3>(w0, a[0], a[2]);
                reader::template decode<3>(w1, a[1], a[3]);
                multiply(3 % shape::parts, a);
            }
            const float d0 = fminf(reader::scale(rows.shared, first), 65504.0f);
            const float d1 = fminf(reader::scale(rows.shared, second), 65504.0f);
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float product = (float) (high[n][i] * 256 + low[n][i]) * ((i < 2 ? d0 : d1) * q_scale[n][i & 1]);
                    s[m][n][i] = b == 0 ? product : s[m][n][i] + product;
                }
            }
        }
    }
}

// Probabilities x block scale of a tile as unsigned 16-bit integers, split into bytes and laid out as B fragments.
// The token order inside a fragment is that of transpose_8x8: 2t, 2t+1, 8+2t, 8+2t+1.
template <class shape> struct probability_fragments {
    uint32_t high[shape::tiles][4], low[shape::tiles][4];
    float unit; // value of one integer step

    __device__ __forceinline__ void build(const float (&p)[4][shape::tiles][4], float (&d)[8]) {
        float top = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            d[i] = fminf(d[i], 65504.0f);
            top = fmaxf(top, d[i]);
        }
#pragma unroll
        for (int step = 4; step <= 16; step *= 2) {
            top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
        }
        unit = top * (1.0f / 65535.0f);
        const float to_int = top > 0.0f ? 65535.0f / top : 0.0f;
#pragma unroll
        for (int m = 0; m < 4; m++) {
            const float f0 = d[2 * m] * to_int, f1 = d[2 * m + 1] * to_int;
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
                // Adding 2^23 leaves the rounded integer in the low mantissa bits.
                constexpr float magic = 8388608.0f;
                const uint32_t x0 = __float_as_uint(fmaf(p[m][n][0], f0, magic)), x1 = __float_as_uint(fmaf(p[m][n][1], f0, magic));
                const uint32_t y0 = __float_as_uint(fmaf(p[m][n][2], f1, magic)), y1 = __float_as_uint(fmaf(p[m][n][3], f1, magic));
                const uint32_t x = transpose_8x8(byte_permute(x0, x1, 0x5410)), y = transpose_8x8(byte_permute(y0, y1, 0x5410));
                low[n][m] = byte_permute(x, y, 0x6420);
                high[n][m] = byte_permute(x, y, 0x7531);
            }
        }
    }
};

// One part (8 values a lane: two products of 16 output values) of out += V x P.
template <class reader, class shape, int part>
static __device__ __forceinline__ void tile_values_part(float (&out)[shape::values_per_lane / 4][shape::tiles][4],
                                                        const uint32_t (&w)[8][reader::words], const probability_fragments<shape> &p,
                                                        const float (&weight)[shape::tiles][2]) {
    int32_t high[2][shape::tiles][4] = {}, low[2][shape::tiles][4] = {};
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t a[2][4];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            uint32_t x[2], y[2];
            reader::template decode<part>(w[4 * k + 2 * half], x[0], x[1]);
            reader::template decode<part>(w[4 * k + 2 * half + 1], y[0], y[1]);
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const uint32_t tx = transpose_8x8(x[j]), ty = transpose_8x8(y[j]);
                a[j][2 * half] = byte_permute(tx, ty, 0x6420);
                a[j][2 * half + 1] = byte_permute(tx, ty, 0x7531);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
                mma_s8_u8(high[j][n], a[j], p.high[n][2 * k], p.high[n][2 * k + 1]);
                mma_s8_u8(low[j][n], a[j], p.low[n][2 * k], p.low[n][2 * k + 1]);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out[2 * part + j][n][i] = fmaf((float) (high[j][n][i] * 256 + low[j][n][i]), weight[n][i & 1], out[2 * part + j][n][i]);
            }
        }
    }
}

// out += V x P for 64 tokens, `count` of them real. p as s of tile_scores; weight[tile][i]: factor of column 2t + i.
// out[b][r][tile][i]: value position(g / 2, r, 2 * (g & 1) + (i >= 2)) of block b, column 2t + (i & 1).
template <class reader, class shape>
static __device__ __forceinline__ void tile_values(float (&out)[shape::blocks][shape::values_per_lane / 4][shape::tiles][4],
                                                   const tile_rows &rows, int count, int block_bytes,
                                                   const float (&p)[4][shape::tiles][4], const float (&weight)[shape::tiles][2]) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
        uint32_t w[8][reader::words];
        float d[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const uint32_t block = rows.offset(8 * i + g) + b * block_bytes;
            reader::load(w[i], rows.shared, block, t);
            d[i] = 8 * i + g < count ? reader::scale(rows.shared, block) : 0.0f; // a slot past the end holds anything
        }
        probability_fragments<shape> fragments;
        fragments.build(p, d);
        float factor[shape::tiles][2];
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            factor[n][0] = weight[n][0] * fragments.unit;
            factor[n][1] = weight[n][1] * fragments.unit;
        }
        tile_values_part<reader, shape, 0>(out[b], w, fragments, factor);
        tile_values_part<reader, shape, 1>(out[b], w, fragments, factor);
        if (shape::parts == 4) {
            tile_values_part<reader, shape, shape::parts == 4 ? 2 : 0>(out[b], w, fragments, factor);
            tile_values_part<reader, shape, shape::parts == 4 ? 3 : 0>(out[b], w, fragments, factor);
        }
    }
}

} // namespace turbo_cuda
