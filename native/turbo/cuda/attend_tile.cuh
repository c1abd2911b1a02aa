// The two products of one tile of 16*slices tokens: scores (K x Q) and values (V x P), both on int8 tensor cores.

#pragma once

#include "attend_params.cuh"
#include "decode.cuh"

#include <type_traits>

namespace turbo_cuda {

// Where a lane finds its rows of a staged tile: rows g, g + 8, g + 16, ... with g = lane / 4. Eight tokens further is a
// multiple of 16 bytes in the cache, so neither the start within a 16-byte unit nor any shift changes from row to row.
struct tile_rows {
    const uint8_t *shared;
    uint32_t first; // byte offset of row g, the head included
    uint32_t step;  // bytes from a row to the one eight further
};

// Running state of the columns 2t, 2t+1 of each tile.
template <class shape> struct column_state {
    float maximum[shape::tiles][2], sum[shape::tiles][2];
    float out[shape::blocks][shape::outputs][shape::tiles][4];
    float zeros[shape::counts_zeros ? shape::blocks : 1][shape::tiles][2]; // is to be taken off each of out
    int skew; // of q8_0 values, after the walk (attend_q8.cuh)
};

// What a codebook step counts in the output of codes. Integers are added to it as the denormal numbers that their bits
// are, without a conversion; what they are multiplied with may then be no larger than a float can be.
static constexpr float code_unit = 0x1p-49f, denormal_unit = 0x1p100f;

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

// A sum of products that begins here is, as a float, 1.5 * 2^23 and the sum; up to 2^22, which no block's scores reach.
// One subtraction then makes a float of it and takes off what another byte than 0 stands for.
static constexpr int32_t sum_start = 0x4b400000;
static constexpr float sum_zero = 12582912.0f;
static_assert(128 * 127 * 128 < 1 << 22, "a block's scores");

// Scores of 16*slices tokens x 8*tiles columns, where a tile of `count` tokens reaches. s[m][tile][i]: token 16m + g
// (i < 2) or 16m + 8 + g, column 2t + (i & 1), where g = lane / 4 and t = lane % 4.
template <class reader, class shape>
static __device__ __forceinline__ void tile_scores(float (&s)[shape::slices][shape::tiles][4], const reader &codes,
                                                   const tile_rows &rows, int count, int block_bytes,
                                                   const uint4 *fragments, const float *scales, const float *sums) {
    const int lane = threadIdx.x & 31, t = lane & 3;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
        const uint32_t block = rows.first + b * block_bytes;
        const code_place place = reader::place(rows.shared, block, t);
        uint4 q[shape::tiles][shape::parts / 2];
        float q_scale[shape::tiles][2], zero[shape::tiles][2];
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            const int at = n * shape::blocks + b;
#pragma unroll
            for (int i = 0; i < shape::parts / 2; i++) {
                q[n][i] = fragments[at * shape::fragments + i * 32 + lane];
            }
#pragma unroll
            for (int c = 0; c < 2; c++) {
                q_scale[n][c] = scales[at * 8 + 2 * t + c] * reader::step;
                zero[n][c] = reader::zero == 0 ? 0.0f : fmaf(sums[at * 8 + 2 * t + c], reader::zero, sum_zero);
            }
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
            constexpr bool shifted = reader::zero != 0;
            int32_t sum[shape::tiles][4];
#pragma unroll
            for (int i = 0; i < 4 * shape::tiles; i++) {
                (&sum[0][0])[i] = shifted ? sum_start : 0;
            }
            auto multiply = [&](auto number) {
                constexpr int part = decltype(number)::value % shape::parts;
                uint32_t a[reader::in_halves ? 2 : 1][4];
                if constexpr (reader::in_halves) { // the product adds them up
                    uint32_t low[2], high[2];
                    codes.template decode_halves<part>(w0, low, high);
                    a[0][0] = low[0], a[0][2] = low[1], a[1][0] = high[0], a[1][2] = high[1];
                    codes.template decode_halves<part>(w1, low, high);
                    a[0][1] = low[0], a[0][3] = low[1], a[1][1] = high[0], a[1][3] = high[1];
                } else {
                    codes.template decode<part>(w0, a[0][0], a[0][2]);
                    codes.template decode<part>(w1, a[0][1], a[0][3]);
                }
#pragma unroll
                for (int n = 0; n < shape::tiles; n++) {
                    const uint4 &two = q[n][part / 2];
#pragma unroll
                    for (const auto &half : a) {
                        mma_s8_s8(sum[n], half, part % 2 == 0 ? two.x : two.z, part % 2 == 0 ? two.y : two.w);
                    }
                }
            };
            multiply(std::integral_constant<int, 0>());
            multiply(std::integral_constant<int, 1>());
            if constexpr (shape::parts == 4) {
                multiply(std::integral_constant<int, 2>());
                multiply(std::integral_constant<int, 3>());
            }
            const float d0 = fminf(reader::scale(rows.shared, block + first), 65504.0f);
            const float d1 = fminf(reader::scale(rows.shared, block + second), 65504.0f);
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float integer = shifted ? __int_as_float(sum[n][i]) - zero[n][i & 1] : (float) sum[n][i];
                    const float product = integer * ((i < 2 ? d0 : d1) * q_scale[n][i & 1]);
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

    // sum += a x the tokens 32k to 32k + 31 of column tile n.
    template <class reader>
    __device__ __forceinline__ void multiply(int32_t (&sum)[4], const uint32_t (&a)[4], int n, int k) const {
        constexpr int last = shape::slices - 1; // one slice alone: the upper half of a is zero
        const uint32_t lower = bytes[n][2 * k], upper = bytes[n][2 * k < last ? 2 * k + 1 : last];
        if constexpr (reader::zero != 0) {
            mma_u8_u8(sum, a, lower, upper);
        } else {
            mma_s8_u8(sum, a, lower, upper);
        }
    }
};

// out += sum * weight, where weight is a multiple of unit_of<reader>.
template <class reader> static constexpr float unit_of = reader::zero != 0 ? denormal_unit : code_unit;
template <class reader> static __device__ __forceinline__ void add_sum(float &out, int32_t sum, float weight) {
    if constexpr (reader::zero != 0) { // and so sum >= 0
        out = multiply_add_denormal((uint32_t) sum, weight, out);
    } else {
        out = fmaf((float) sum, weight, out);
    }
}

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
                if constexpr (reader::in_nibbles) { // of two tokens already
                    a[j][2 * half] = transpose_8x8(x[j]), a[j][2 * half + 1] = transpose_8x8(y[j]);
                    continue;
                }
                const uint32_t tx = transpose_8x8(x[j]), ty = transpose_8x8(y[j]);
                a[j][2 * half] = byte_permute(tx, ty, 0x6240);
                a[j][2 * half + 1] = byte_permute(tx, ty, 0x7351);
            }
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
                p.template multiply<reader>(sum[j][n], a[j], n, k);
            }
        }
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                add_sum<reader>(out[2 * part + j][n][i], sum[j][n][i], weight[n][i & 1]);
            }
        }
    }
}

// out += V x P for the real ones of 16*slices tokens. p as s of tile_scores; weight[tile][i]: factor of column 2t
// + i. out[b][r][tile][i]: value position(g / 2, r, 2 * (g & 1) + (i >= 2)) of block b, column 2t + (i & 1).
template <class reader, class shape> static __device__ __forceinline__ void
tile_values(column_state<shape> &state, const reader &codes, const tile_rows &rows, const tile_limits &limits,
            int block_bytes, const float (&p)[shape::slices][shape::tiles][4], const float (&weight)[shape::tiles][2]) {
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
        if constexpr (reader::in_nibbles) {
#pragma unroll
            for (int i = 0; i < shape::slices; i++) {
                exchange_nibbles(w[2 * i], w[2 * i + 1]);
            }
        }
        probability_fragments<shape> fragments;
        fragments.build(p, d);
        float factor[shape::tiles][2];
        const float unit = fragments.unit * (reader::step * unit_of<reader>);
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            factor[n][0] = weight[n][0] * unit, factor[n][1] = weight[n][1] * unit;
            if constexpr (reader::zero != 0) { // a value of which all tokens have that byte
                constexpr uint32_t zeros = 0x01010101u * reader::zero, upper = shape::slices > 1 ? zeros : 0u;
                int32_t sum[4] = {};
#pragma unroll
                for (int k = 0; k < (shape::slices + 1) / 2; k++) {
                    fragments.template multiply<reader>(sum, {zeros, zeros, upper, upper}, n, k);
                }
                add_sum<reader>(state.zeros[b][n][0], sum[0], factor[n][0]);
                add_sum<reader>(state.zeros[b][n][1], sum[1], factor[n][1]);
            }
        }
        tile_values_part<reader, shape, 0>(state.out[b], codes, limits.count, w, fragments, factor);
        tile_values_part<reader, shape, 1>(state.out[b], codes, limits.count, w, fragments, factor);
        if (shape::parts == 4) {
            tile_values_part<reader, shape, shape::parts == 4 ? 2 : 0>(state.out[b], codes, limits.count, w, fragments,
                                                                       factor);
            tile_values_part<reader, shape, shape::parts == 4 ? 3 : 0>(state.out[b], codes, limits.count, w, fragments,
                                                                       factor);
        }
    }
}

} // namespace turbo_cuda
