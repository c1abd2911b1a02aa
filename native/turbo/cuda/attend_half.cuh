// The two products of a tile for K or V stored in plain formats (f16, q8_0, q4_0): decoded to f16, on f16 tensor cores.
// (q8_0 in an instance of its own takes another way: attend_q8.cuh.)
//
// As in decode.cuh, lane 4r+t owns token r and quarter t of a block of 128 or 64 values. A unit is four neighbouring
// values v0-v3 of it, as two registers of two halves: (v0, v2) and (v1, v3), so that the outputs land where
// attend_tile.cuh has them.

#pragma once

#include "attend_tile.cuh"

namespace turbo_cuda {

// P is multiplied by this before it becomes f16: probabilities down to 2^-29 of the largest stay normal numbers.
static constexpr float half_weight = 32768.0f;

static __device__ __forceinline__ uint32_t half2_bits(__half2 x) {
    return *reinterpret_cast<uint32_t *>(&x);
}
static __device__ __forceinline__ __half2 as_half2(uint32_t x) {
    return *reinterpret_cast<__half2 *>(&x);
}
static __device__ __forceinline__ uint32_t two_halves(float low, float high) {
    return half2_bits(__floats2half2_rn(low, high));
}

// Where the values of a lane begin in its 32-value group, and the step from unit to unit.
template <int values> struct half_reader {
    int group, first;
    static constexpr int unit_step = values == 32 ? 4 : 8;
    __device__ __forceinline__ explicit half_reader(int t)
        : group(values == 32 ? t : t >> 1), first(values == 32 ? 0 : 4 * (t & 1)) {}
};

template <int values> struct reader_f16 : half_reader<values> {
    const uint8_t *at;
    __device__ __forceinline__ explicit reader_f16(int t) : half_reader<values>(t) {}
    __device__ __forceinline__ void begin(const uint8_t *block) { at = block + 64 * this->group + 2 * this->first; }
    __device__ __forceinline__ void unit(int r, uint32_t &u0, uint32_t &u1) const {
        const uint2 w = *reinterpret_cast<const uint2 *>(at + 2 * half_reader<values>::unit_step * r);
        u0 = byte_permute(w.x, w.y, 0x5410);
        u1 = byte_permute(w.x, w.y, 0x7632);
    }
    // The same four values as (v0, v1) and (v2, v3).
    __device__ __forceinline__ void in_order(int r, uint32_t &u0, uint32_t &u1) const {
        const uint2 w = *reinterpret_cast<const uint2 *>(at + 2 * half_reader<values>::unit_step * r);
        u0 = w.x, u1 = w.y;
    }
};

// Bytes 0-255 become halves 1024-1279 by setting their upper byte; then the offset is subtracted exactly. The selectors
// say which bytes come together.
static constexpr uint32_t even_bytes = 0x4240, odd_bytes = 0x4341, first_bytes = 0x4140, last_bytes = 0x4342;
static __device__ __forceinline__ uint32_t bytes_to_halves(uint32_t bytes, uint32_t selector, float offset,
                                                           __half2 scale) {
    const __half2 x = as_half2(byte_permute(bytes, 0x64646464u, selector));
    return half2_bits(__hmul2(__hsub2(x, __float2half2_rn(offset)), scale));
}

static __device__ __forceinline__ uint32_t load_word_by_halves(const uint8_t *at) {
    const uint16_t *half = reinterpret_cast<const uint16_t *>(at);
    return half[0] | (uint32_t) half[1] << 16;
}

// Formats of ggml with an f16 scale and `group_bytes` in all for 32 values. format::bytes(at, value) gives four
// unsigned bytes from `value` on, larger than the values by format::bias.
template <class format, int values> struct reader_bytes : half_reader<values> {
    static constexpr float offset = 1024.0f + format::bias;
    const uint8_t *at;
    __half2 scale;
    __device__ __forceinline__ explicit reader_bytes(int t) : half_reader<values>(t) {}
    __device__ __forceinline__ void begin(const uint8_t *block) {
        const uint8_t *group = block + format::group_bytes * this->group;
        scale = __half2half2(*reinterpret_cast<const __half *>(group));
        at = group + 2 + this->first;
    }
    __device__ __forceinline__ void halves(int r, uint32_t selector0, uint32_t selector1, uint32_t &u0,
                                           uint32_t &u1) const {
        const uint32_t x = format::bytes(at, half_reader<values>::unit_step * r);
        u0 = bytes_to_halves(x, selector0, offset, scale), u1 = bytes_to_halves(x, selector1, offset, scale);
    }
    __device__ __forceinline__ void unit(int r, uint32_t &u0, uint32_t &u1) const {
        halves(r, even_bytes, odd_bytes, u0, u1);
    }
    __device__ __forceinline__ void in_order(int r, uint32_t &u0, uint32_t &u1) const {
        halves(r, first_bytes, last_bytes, u0, u1);
    }
};

// 32 signed bytes.
struct bytes_q8_0 {
    static constexpr int group_bytes = 34, bias = 128;
    static __device__ __forceinline__ uint32_t bytes(const uint8_t *at, int value) {
        return load_word_by_halves(at + value) ^ 0x80808080u;
    }
};

// 16 bytes; low nibbles are values 0-15, high nibbles 16-31, all offset by 8.
struct bytes_q4_0 {
    static constexpr int group_bytes = 18, bias = 8;
    static __device__ __forceinline__ uint32_t bytes(const uint8_t *at, int value) {
        const uint32_t word = load_word_by_halves(at + value % 16);
        return (value < 16 ? word : word >> 4) & 0x0f0f0f0fu;
    }
};

template <int values> using reader_q8_0 = reader_bytes<bytes_q8_0, values>;
template <int values> using reader_q4_0 = reader_bytes<bytes_q4_0, values>;

// As tile_scores. fragments[unit*32 + lane]: the query's unit as f16 (2 registers) and what rounding left of it (2).
template <class reader, class shape>
static __device__ __forceinline__ void tile_scores_half(float (&s)[shape::slices][shape::tiles][4],
                                                        const tile_rows &rows, int count, int block_bytes,
                                                        const uint4 *fragments, const float *scales) {
    const int lane = threadIdx.x & 31, t = lane & 3;
    constexpr int units = shape::values_per_lane / 4;
    reader first(t), second(t);
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
#pragma unroll
        for (int m = 0; m < shape::slices; m++) {
            if (!reaches(count, m)) {
#pragma unroll
                for (int i = 0; i < 4 * shape::tiles; i++) {
                    (&s[m][0][0])[i] = 0.0f;
                }
                continue;
            }
            const uint8_t *block = rows.shared + rows.first + b * block_bytes + 2 * m * rows.step;
            first.begin(block);
            second.begin(block + rows.step);
            float high[shape::tiles][4] = {}, low[shape::tiles][4] = {};
#pragma unroll
            for (int r = 0; r < units; r++) {
                uint32_t a[4];
                first.unit(r, a[0], a[2]);
                second.unit(r, a[1], a[3]);
#pragma unroll
                for (int n = 0; n < shape::tiles; n++) {
                    const uint4 q = fragments[(n * shape::blocks + b) * units * 32 + r * 32 + lane];
                    mma_f16(high[n], a, q.x, q.y);
                    mma_f16(low[n], a, q.z, q.w);
                }
            }
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float product =
                        (high[n][i] + low[n][i]) * scales[(n * shape::blocks + b) * 8 + 2 * t + (i & 1)];
                    s[m][n][i] = b == 0 ? product : s[m][n][i] + product;
                }
            }
        }
    }
}

// As tile_values; the output counts half_weight times.
template <class reader, class shape> static __device__ __forceinline__ void
tile_values_half(float (&out)[shape::blocks][shape::values_per_lane / 4][shape::tiles][4], const tile_rows &rows,
                 const tile_limits &limits, int block_bytes, const float (&p)[shape::slices][shape::tiles][4],
                 const float (&weight)[shape::tiles][2]) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    reader first(t), second(t);
#pragma unroll
    for (int m = 0; m < shape::slices; m++) {
        if (!reaches(limits.count, m)) {
            continue;
        }
        uint32_t x[shape::tiles], y[shape::tiles];
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            const float w0 = weight[n][0] * half_weight, w1 = weight[n][1] * half_weight;
            x[n] = transpose_8x8(two_halves(p[m][n][0] * w0, p[m][n][1] * w1));
            y[n] = transpose_8x8(two_halves(p[m][n][2] * w0, p[m][n][3] * w1));
        }
#pragma unroll
        for (int b = 0; b < shape::blocks; b++) {
            const uint8_t *block = rows.shared + rows.first + b * block_bytes + 2 * m * rows.step;
            first.begin(block);
            second.begin(block + rows.step);
#pragma unroll
            for (int r = 0; r < shape::values_per_lane / 4; r++) {
                uint32_t u[4];
                first.unit(r, u[0], u[1]);
                second.unit(r, u[2], u[3]);
                if (!limits.whole<shape>()) { // there lies anything, NaN included
                    const bool x_real = limits.real(16 * m + g), y_real = limits.real(16 * m + 8 + g);
                    u[0] = x_real ? u[0] : 0u, u[1] = x_real ? u[1] : 0u;
                    u[2] = y_real ? u[2] : 0u, u[3] = y_real ? u[3] : 0u;
                }
                uint32_t a[4];
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    a[i] = transpose_8x8(u[i]);
                }
#pragma unroll
                for (int n = 0; n < shape::tiles; n++) {
                    mma_f16(out[b][r][n], a, x[n], y[n]);
                }
            }
        }
    }
}

} // namespace turbo_cuda
