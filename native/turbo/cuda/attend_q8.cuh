// The two products of a tile for K or V stored as q8_0 in heads of 128, where a kernel reads nothing else of them:
// bytes go to the tensor cores as they lie in shared memory. (attend_half.cuh serves q8_0 everywhere else.)
//
// A head of a token is four blocks of 34 bytes, an f16 scale and 32 signed bytes: 136 bytes that begin at a multiple of
// 8 and, in all tokens alike, at the same place within 16.

#pragma once

#include "attend_half.cuh"

namespace turbo_cuda {

static constexpr int q8_block_bytes = 34;

static constexpr int q8_units = 9; // of 16 bytes, that a head reaches into

// Where a head begins within 16 bytes: 0 or 8.
static __device__ __forceinline__ int q8_skew(const tile_rows &rows) {
    return (int) (rows.first & 8);
}

// Where the head begins in token l % 16, for lane l.
static __device__ __forceinline__ uint32_t q8_own_token(const tile_rows &rows) {
    const int lane = threadIdx.x & 31;
    return __shfl_sync(0xffffffffu, rows.first, 4 * (lane & 7)) + (lane & 8 ? rows.step : 0);
}

// Keys, int8. ldmatrix gives two units of 16 tokens as the operand of a product: 32 bytes, that the values of a block
// fill but for some at their beginning, as many as q8_turn says. Those are replaced by the block's last bytes, which
// lie at the same place of the next unit. So the values are turned within their block, and so are the queries'.

// Which bytes of a lane's first word of a block come from the next unit, as a selector.
static __device__ __forceinline__ uint32_t q8_selector(int block, int skew) {
    const int turned = q8_turn(block, skew) - 4 * (threadIdx.x & 3);
    return 0x3210u + (turned >= 2 ? 0x0044u : 0u) + (turned >= 4 ? 0x4400u : 0u);
}

// As tile_scores. fragments[block*32 + lane]: high bytes (2 registers) and low bytes (2) of the query, turned.
template <class shape>
static __device__ __forceinline__ void tile_scores_q8(float (&s)[shape::slices][shape::tiles][4], const tile_rows &rows,
                                                      const uint4 *fragments, const float *scales) {
    static_assert(shape::head_dim == 128 && shape::blocks == 1 && shape::tiles == 1, "the layout of one head");
    const int lane = threadIdx.x & 31, t = lane & 3, skew = q8_skew(rows);
    const float2 q_scale = *reinterpret_cast<const float2 *>(scales + 2 * t);
    uint4 q[4];
    uint32_t selector[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
        q[j] = fragments[j * 32 + lane];
        selector[j] = q8_selector(j, skew);
    }
    // of ldmatrix: upper lanes one unit on
    const uint32_t address = (uint32_t) __cvta_generic_to_shared(rows.shared) + q8_own_token(rows) - skew + (lane & 16);
#pragma unroll
    for (int m = 0; m < shape::slices; m++) {
        const uint8_t *first = rows.shared + rows.first + 2 * m * rows.step, *second = first + rows.step;
        uint32_t a[4], next[4];
        load_matrices(a, address + 2 * m * rows.step);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t unit = address + 2 * m * rows.step + 32 * (j + 1);
            if (j < 3) {
                load_matrices(next, unit);
            } else {
                load_two_matrices(next, unit);
            }
            a[0] = byte_permute(a[0], next[0], selector[j]);
            a[1] = byte_permute(a[1], next[1], selector[j]);
            int32_t sum[4] = {};
            mma_s8_s8(sum, a, q[j].x, q[j].y);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[i] *= 256;
            }
            mma_s8_s8(sum, a, q[j].z, q[j].w);
            const float d0 = load_half(first, j * q8_block_bytes), d1 = load_half(second, j * q8_block_bytes);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float product = (float) sum[i], scale = i < 2 ? d0 : d1;
                s[m][0][i] = j == 0 ? product * scale : fmaf(product, scale, s[m][0][i]);
                a[i] = next[i];
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            s[m][0][i] *= i & 1 ? q_scale.y : q_scale.x;
        }
    }
}

// Values, f16. ldmatrix transposes pairs of bytes: of a unit of 16 bytes of the tokens' rows, lane 4g+t gets pair g of
// tokens 2t and 2t+1. The even and the odd bytes are two rows of the product: bytes offset by 128 as halves without an
// exponent, which are multiples of 2^-24. The scale of token and block goes into the probabilities. Where a unit
// reaches into two blocks, both products are made and each lane keeps what is its own.
//
// The pair that holds a block's scale becomes 128 in all tokens, so that its row adds up what the offset of the others
// amounts to.

static constexpr float q8_step = 1.0f / (1 << 24);

// The pair of unit 2*block that is the scale of a block; the pairs before it belong to the block before. skew: bytes
// from a multiple of 16 to the head, 0 or 8.
static __device__ __forceinline__ int q8_scale_pair(int block, int skew) {
    return block + skew / 2;
}

// The block of pair g of a unit; -1 or 4 before or after the head.
static __device__ __forceinline__ int q8_block_of(int unit, int g, int skew) {
    return unit / 2 - (unit % 2 == 0 && g < q8_scale_pair(unit / 2, skew));
}

// Which value of a head pair g of a unit begins with, or -1 if that is none.
static __device__ __forceinline__ int q8_value_of(int unit, int g, int skew) {
    const int block = q8_block_of(unit, g, skew), value = 16 * unit + 2 * g - skew - 2 * (block + 1);
    return block < 0 || block > 3 || value < 32 * block ? -1 : value;
}

// out += V x P of 16 tokens, whose probabilities x (tokens 2t, 2t+1 of either half, column g) have their weight; scales
// may be anything if `wild`. out[0][u][0][i]: pair g of unit u, byte i / 2, column 2t + (i & 1). address: of ldmatrix,
// where unit 0 of this lane's token begins, in the upper lanes unit 1.
template <class shape, bool wild>
static __device__ __forceinline__ void add_values_q8(float (&out)[shape::blocks][shape::outputs][shape::tiles][4],
                                                     uint32_t address, int skew, const uint32_t (&x)[2]) {
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    uint32_t bytes[4], before[2] = {}, scaled[2] = {}; // probabilities times the scale of a block, and of the last one
#pragma unroll
    for (int u = 0; u < q8_units; u++) {
        if (u == q8_units - 1) {
            load_two_matrices_transposed(bytes, address + 16 * u);
        } else if (u % 2 == 0) {
            load_matrices_transposed(bytes, address + 16 * u);
        }
        const uint32_t(&unit)[2] = reinterpret_cast<const uint32_t(&)[2]>(bytes[u % 2 * 2]);
        const bool begins = u % 2 == 0 && u < 8, both = begins && u > 0; // a block, behind another one
        const int scale_pair = q8_scale_pair(u / 2, skew);
        if (begins) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t scale = __shfl_sync(0xffffffffu, unit[i], 4 * scale_pair + t);
                scale = wild ? finite_halves(scale) : scale;
                before[i] = scaled[i];
                scaled[i] = half2_bits(__hmul2(as_half2(x[i]), as_half2(scale)));
            }
        }
        const bool is_scale = begins && g == scale_pair;
        const uint32_t even = is_scale ? 0x5454u : 0x5250u, odd = is_scale ? 0x5454u : 0x5351u;
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t offset = unit[i] ^ 0x80808080u;
            a[2 * i] = byte_permute(offset, 0x80u, even);
            a[2 * i + 1] = byte_permute(offset, 0x80u, odd);
        }
        float other[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            other[i] = out[0][u][0][i];
        }
        mma_f16(out[0][u][0], a, scaled[0], scaled[1]);
        if (both) {
            mma_f16(other, a, before[0], before[1]);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                out[0][u][0][i] = g < scale_pair ? other[i] : out[0][u][0][i];
            }
        }
    }
}

// out += V x P of one tile, in units of q8_step / half_weight and with the offsets (settle_values_q8 removes them).
// Tokens that are not real have probabilities of zero, and anything lies in their place.
template <class shape> static __device__ __forceinline__ void
tile_values_q8(float (&out)[shape::blocks][shape::outputs][shape::tiles][4], const tile_rows &rows,
               const tile_limits &limits, const float (&p)[shape::slices][shape::tiles][4],
               const float (&weight)[shape::tiles][2]) {
    static_assert(shape::head_dim == 128 && shape::blocks == 1 && shape::tiles == 1, "the layout of one head");
    static_assert(shape::outputs == q8_units && shape::slices == 1, "a product takes 16 tokens");
    const int lane = threadIdx.x & 31, skew = q8_skew(rows);
    const uint32_t own = q8_own_token(rows);
    const uint8_t *scales = rows.shared + own + (lane & 16 ? 2 * q8_block_bytes : 0); // two of the four
    const uint32_t either =
        *reinterpret_cast<const uint16_t *>(scales) | *reinterpret_cast<const uint16_t *>(scales + q8_block_bytes);
    // Times half_weight, scales of 2 or more are beyond the range of an f16: all counts less in such a tile.
    const bool loud = __any_sync(0xffffffffu, (either & 0x4000u) != 0 && limits.real(lane & 15));
    constexpr float quiet = 1.0f / 65536.0f;
    const float unit = loud ? half_weight * quiet : half_weight, w0 = weight[0][0] * unit, w1 = weight[0][1] * unit;
    const uint32_t x[2] = {transpose_8x8(two_halves(p[0][0][0] * w0, p[0][0][1] * w1)),
                           transpose_8x8(two_halves(p[0][0][2] * w0, p[0][0][3] * w1))};
    const uint32_t address = (uint32_t) __cvta_generic_to_shared(rows.shared) + own - skew + (lane & 16);
    if (!loud && limits.whole<shape>()) {
        add_values_q8<shape, false>(out, address, skew, x);
        return;
    }
    float *all = &out[0][0][0][0];
    const float before = loud ? quiet : 1.0f, after = loud ? 1.0f / quiet : 1.0f; // powers of two
#pragma unroll
    for (int i = 0; i < 4 * q8_units; i++) {
        all[i] *= before;
    }
    add_values_q8<shape, true>(out, address, skew, x);
#pragma unroll
    for (int i = 0; i < 4 * q8_units; i++) {
        all[i] *= after;
    }
}

// After the last tile: take the offsets out and leave the values half_weight times.
template <class shape> static __device__ __forceinline__ void
settle_values_q8(float (&out)[shape::blocks][shape::outputs][shape::tiles][4], int skew) {
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    float offset[4][2];
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            offset[j][c] = __shfl_sync(0xffffffffu, out[0][2 * j][0][c], 4 * q8_scale_pair(j, skew) + t);
        }
    }
#pragma unroll
    for (int u = 0; u < q8_units; u++) {
        const bool own = u % 2 != 0 || g >= q8_scale_pair(u / 2, skew);
        const int block = u < 8 ? u / 2 : 3, previous = u > 0 ? (u - 1) / 2 : 0;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float amount = own ? offset[block][i & 1] : offset[previous][i & 1];
            out[0][u][0][i] = (out[0][u][0][i] - amount) * (1.0f / q8_step);
        }
    }
}

} // namespace turbo_cuda
