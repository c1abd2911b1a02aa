// Blocks in device memory to values and back, a warp a block: lane l has the values l*n/32 ... of a block of n.

#pragma once

#include "attend_query.cuh"
#include "formats.cuh"

namespace turbo_cuda {

// ---- reading
// ---------------------------------------------------------------------------------------------------------

// `count` <= 16 bits of a block from bit `first` (blocks are 2-byte aligned).
static __device__ __forceinline__ uint32_t block_bits(const uint8_t *block, int first, int count) {
    const uint16_t *words = reinterpret_cast<const uint16_t *>(block) + first / 16;
    const int shift = first % 16;
    const uint32_t low = words[0], high = shift + count > 16 ? words[1] : 0u;
    return ((low | high << 16) >> shift) & ((1u << count) - 1u);
}

// The stored scale.
template <class format> static __device__ __forceinline__ float block_scale(const uint8_t *block) {
    const uint16_t header = *reinterpret_cast<const uint16_t *>(block);
    return __half2float(__ushort_as_half(format::window ? (unsigned short) ((header & 0x3ffu) << 5) : header));
}

// Code (scalar) or window (trellis) of value i.
template <class format> static __device__ __forceinline__ int block_code(const uint8_t *block, int i) {
    if (format::window) {
        return block_bits(block, 16 + format::bits * (i + 1) - format::window, format::window);
    }
    const int j = i % 32, base = 16 + i / 32 * 32 * format::bits;
    if (format::bits == 4) {
        return block_bits(block, base + 4 * j, 4);
    }
    if (format::bits == 2) {
        return block_bits(block, base + 4 * (j % 16) + (j >= 16 ? 2 : 0), 2);
    }
    if (j < 24) {
        return block_bits(block, base + 4 * j, 3);
    }
    const int at = base + 4 * (j - 24) + 3;
    return block_bits(block, at, 1) | block_bits(block, at + 32, 1) << 1 | block_bits(block, at + 64, 1) << 2;
}

// The block in the original domain: an integer table, an integer transform, one multiplication by f a value.
template <class format, int n>
static __device__ __forceinline__ void decode_block(const uint8_t *block, float (&x)[n / 32]) {
    const int lane = threadIdx.x & 31, first = lane * (n / 32);
#pragma unroll
    for (int i = 0; i < n / 32; i++) {
        x[i] = (float) format::entry(block_code<format>(block, first + i)); // below 2^24: exact in f32
    }
    hadamard_lanes<n / 32, 32>(x);
    const float f = block_scale<format>(block) * format::unit(n);
    const uint32_t signs = sign_word<n>(first / 32) >> (first % 32);
#pragma unroll
    for (int i = 0; i < n / 32; i++) {
        x[i] = flip_sign(x[i] * f, signs, i);
    }
}

// ---- writing
// ---------------------------------------------------------------------------------------------------------

static __device__ __forceinline__ float sum_over_warp(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
    }
    return x;
}

// Nearest stored scale to a finite value >= 0, as its bits: 5 exponent bits and `mantissa` bits, saturating.
template <int mantissa> static __device__ __forceinline__ uint32_t encode_scale(float value) {
    const int exponent = (int) (__float_as_uint(value) >> 23) - 127;
    constexpr uint32_t largest = (31u << mantissa) - 1;
    if (exponent > 15) {
        return largest;
    }
    const int e = exponent < -14 ? -14 : exponent;
    const float units = value * __uint_as_float((uint32_t) (127 - e + mantissa) << 23);
    const uint32_t field = ((uint32_t) (e + 14) << mantissa) + (__float_as_uint(units + 8388608.0f) & 0x7fffffu);
    return min(field, largest);
}

template <int mantissa> static __device__ __forceinline__ float decode_scale(uint32_t field) {
    return __half2float(__ushort_as_half((unsigned short) (field << (10 - mantissa))));
}

// A block after rotation, before its codes are chosen.
template <int n> struct rotated_block {
    float y[n / 32]; // sqrt(n) times the rotated values
    float rms;       // of the block
    bool finite, saturated;

    __device__ __forceinline__ void rotate(const float (&x)[n / 32]) {
        const int lane = threadIdx.x & 31, first = lane * (n / 32);
        uint32_t peak = 0;
#pragma unroll
        for (int i = 0; i < n / 32; i++) {
            y[i] = x[i];
            peak = max(peak, __float_as_uint(x[i]) & 0x7fffffffu);
        }
        peak = __reduce_max_sync(0xffffffffu, peak);
        finite = peak < 0x7f800000u;
        saturated = peak >= (127u + 24u) << 23; // scaled down before the transform, which must not overflow
        if (saturated && finite) {
            const float shrink = __uint_as_float((127u + 24u + 127u - (peak >> 23)) << 23);
#pragma unroll
            for (int i = 0; i < n / 32; i++) {
                y[i] *= shrink;
            }
        }
        const uint32_t signs = sign_word<n>(first / 32) >> (first % 32);
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < n / 32; i++) {
            y[i] = flip_sign(y[i], signs, i);
        }
        hadamard_lanes<n / 32, 32>(y);
#pragma unroll
        for (int i = 0; i < n / 32; i++) {
            sum = fmaf(y[i], y[i], sum);
        }
        rms = sqrtf(sum_over_warp(sum)) * (1.0f / n);
        saturated |= rms > 65504.0f;
        if (saturated) { // keep the direction: codes for a scale of 1
#pragma unroll
            for (int i = 0; i < n / 32; i++) {
                y[i] *= 1.0f / rms;
            }
            rms = 1.0f;
        }
    }

    // Values in fractions (1 / substeps) of a codebook step for a given scale.
    template <class format> __device__ __forceinline__ void quantise(float scale, int (&q)[n / 32]) const {
        const float factor = format::substeps / (scale * format::unit(n) * n);
#pragma unroll
        for (int i = 0; i < n / 32; i++) {
            q[i] = __float2int_rn(fminf(fmaxf(y[i] * factor, -32767.0f), 32767.0f));
        }
    }
};

// The scalar search, as native/turbo/cpu/search.h has it: gain i (quantiser scale over rms) is 1/4 + i/32.
template <class format> struct scalar_search {
    static constexpr int half = 1 << (format::bits - 1), gains = 80, step = 2;
    static constexpr float first_gain = 0.25f;
    static constexpr int tries = format::bits == 2 ? 9 : 7, reach = tries / 2 * step;
    // gain that suits a block with peak / rms = r: base + slope * r, fitted on Gaussian blocks of 128
    static constexpr float base = format::bits == 2 ? 0.883f : format::bits == 3 ? 0.439f : 0.051f;
    static constexpr float slope = format::bits == 2 ? 0.0390f : format::bits == 3 ? 0.2008f : 0.3236f;

    // The first gain to try for a block whose largest quantised value is `peak`: around the fitted gain, or the one
    // whose largest magnitude is the peak if that is less.
    static __device__ __forceinline__ int first_of(int peak) {
        const float fitted = 32.0f * (base - first_gain) + 32.0f * slope * format::unit(1) / format::substeps * peak;
        const float at_top = -32.0f * first_gain + 32.0f / (format::substeps * format::entry(2 * half - 1)) * peak;
        const int centre = (int) floorf(fminf(fitted, at_top) + 0.5f);
        return min(max(centre, reach), gains - 1 - reach) - reach;
    }
};

// Codes of a block at one gain: magnitude by thresholds, then the sign.
template <class format, int n>
static __device__ __forceinline__ float try_gain(const int (&q)[n / 32], float gain, int (&code)[n / 32], int &num,
                                                 int &den) {
    constexpr int half = 1 << (format::bits - 1);
    num = 0, den = 0;
#pragma unroll
    for (int i = 0; i < n / 32; i++) {
        const int value = abs(q[i]);
        int m = 0, magnitude = format::entry(half);
#pragma unroll
        for (int t = 0; t + 1 < half; t++) {
            const int sum = format::entry(half + t) + format::entry(half + t + 1);
            const int middle = (int) (0.5f * format::substeps * sum * gain + 0.5f);
            m += value > middle;
            magnitude = value > middle ? format::entry(half + t + 1) : magnitude;
        }
        code[i] = q[i] < 0 ? half - 1 - m : half + m;
        num += value * magnitude;
        den += magnitude * magnitude;
    }
    num = __reduce_add_sync(0xffffffffu, num);
    den = __reduce_add_sync(0xffffffffu, den);
    return (float) num / (float) den * (float) num;
}

// Several gains around the one that the block's peak suggests; the best fit is kept.
template <class format, int n>
static __device__ __forceinline__ uint32_t search_scalar(const rotated_block<n> &block, int (&code)[n / 32]) {
    using search = scalar_search<format>;
    int q[n / 32], peak = 0;
    block.template quantise<format>(block.rms, q);
#pragma unroll
    for (int i = 0; i < n / 32; i++) {
        peak = max(peak, abs(q[i]));
    }
    peak = __reduce_max_sync(0xffffffffu, peak);
    const int first = search::first_of(peak);
    float best = -1.0f;
    int best_gain = first, num, den;
#pragma unroll 1
    for (int i = 0; i < search::tries; i++) {
        const int gain = first + i * search::step;
        const float quality = try_gain<format, n>(q, search::first_gain + gain / 32.0f, code, num, den);
        best_gain = quality > best ? gain : best_gain;
        best = fmaxf(best, quality);
    }
    try_gain<format, n>(q, search::first_gain + best_gain / 32.0f, code, num, den);
    return num > 0 ? encode_scale<10>(block.rms * num / format::substeps / den) : 0u;
}

// Store scalar codes: each lane's values are neighbouring nibbles of one word (docs/formats.md).
template <class format, int n>
static __device__ __forceinline__ void pack_scalar(uint8_t *block, const int (&code)[n / 32], uint32_t scale) {
    constexpr int values = n / 32, lanes = 32 / values; // lanes of a group of 32 values
    const int lane = threadIdx.x & 31, in_group = lane % lanes, group = lane / lanes;
    uint32_t nibbles = 0;
#pragma unroll
    for (int i = 0; i < values; i++) {
        nibbles |= (uint32_t) code[i] << (4 * i);
    }
    if (format::bits == 2) {
        nibbles |= __shfl_sync(0xffffffffu, nibbles, (lane + lanes / 2) & 31) << 2;
    } else if (format::bits == 3) {
        const int word = in_group * values / 8;
        const uint32_t last = __shfl_sync(0xffffffffu, nibbles, group * lanes + lanes * 3 / 4 + in_group % (lanes / 4));
        nibbles |= ((last >> word) & 0x1111u) << 3;
    }
    if (lane == 0) {
        *reinterpret_cast<uint16_t *>(block) = (uint16_t) scale;
    }
    // 64-value blocks: two lanes make a 16-bit store together
    uint32_t store = nibbles;
    if (values == 2) {
        store |= __shfl_down_sync(0xffffffffu, nibbles, 1) << 8;
    }
    if (in_group < lanes / 4 * format::bits && (values == 4 || lane % 2 == 0)) {
        uint8_t *at = block + 2 + group * 4 * format::bits + in_group * values / 2;
        *reinterpret_cast<uint16_t *>(at) = (uint16_t) store;
    }
}

// Encode a block held by a warp.
template <class format, int n>
static __device__ __forceinline__ void encode_scalar(uint8_t *block, const float (&x)[n / 32]) {
    rotated_block<n> rotated;
    rotated.rotate(x);
    int code[n / 32] = {};
    uint32_t scale = 0;
    if (!rotated.finite) {
        scale = 0x7e00u; // NaN throughout
    } else if (rotated.rms >= 0x1p-26f) {
        scale = search_scalar<format, n>(rotated, code);
        if (scale != 0 && rotated.saturated) {
            scale = 0x7bffu;
        }
    }
    if (scale == 0 || !rotated.finite) {
#pragma unroll
        for (int i = 0; i < n / 32; i++) {
            code[i] = 0;
        }
    }
    pack_scalar<format, n>(block, code, scale);
}

} // namespace turbo_cuda
