// Packed codes to signed bytes, in registers.
//
// Work is laid out for tensor-core products of 8 tokens a warp: lane 4r+t owns token r and the t-th quarter of its
// block, 32 values of a 128-value block (a "part" is 8 of them: two registers of four bytes each), 16 of a 64-value one.
// A reader loads the code words of its quarter once and then hands out parts in any order.

#pragma once

#include "ptx.cuh"
#include "tables.cuh"

namespace turbo_cuda {

// `n` 32-bit words at a byte offset that is only known to be even.
template <int n> static __device__ __forceinline__ void load_words(uint32_t (&w)[n], const uint8_t *shared, uint32_t offset) {
    const uint32_t *base = reinterpret_cast<const uint32_t *>(shared + (offset & ~3u));
    const uint32_t shift = (offset & 2u) * 8u;
    uint32_t word = base[0];
#pragma unroll
    for (int i = 0; i < n; i++) {
        const uint32_t next = base[i + 1];
        w[i] = __funnelshift_r(word, next, shift);
        word = next;
    }
}

static __device__ __forceinline__ float load_half(const uint8_t *shared, uint32_t offset) {
    return __half2float(*reinterpret_cast<const __half *>(shared + offset));
}

// Eight entries of a table: selector nibbles must have their top bit clear.
template <uint32_t t0, uint32_t t1>
static __device__ __forceinline__ void look_up_8(uint32_t selectors, uint32_t &r0, uint32_t &r1) {
    r0 = byte_permute(t0, t1, selectors);
    r1 = byte_permute(t0, t1, selectors >> 16);
}

// What the scalar types share: an f16 scale, then one word a bit for every 32 values.
template <int bits> struct reader_scalar {
    static constexpr int words = bits;
    static __device__ __forceinline__ void load(uint32_t (&w)[words], const uint8_t *shared, uint32_t block, int t) {
        load_words(w, shared, block + 2 + 4 * bits * t);
    }
    static __device__ __forceinline__ float scale(const uint8_t *shared, uint32_t block) {
        return load_half(shared, block);
    }
};

// Scalar codes, 2 bits: w0 and w1 hold values 0-15 in the low and 16-31 in the high two bits of each nibble.
struct reader_2bit : reader_scalar<2> {
    template <int part>
    static __device__ __forceinline__ void decode(const uint32_t (&w)[words], uint32_t &r0, uint32_t &r1) {
        constexpr uint32_t t0 = pack4(book::turbo_book_turbo2, 0);
        const uint32_t codes = (part < 2 ? w[part & 1] : w[part & 1] >> 2) & 0x33333333u;
        look_up_8<t0, t0>(codes, r0, r1);
    }
};

// 3 bits: nibbles of w0-w2 hold values 0-23, their top bits the values 24-31.
struct reader_3bit : reader_scalar<3> {
    template <int part>
    static __device__ __forceinline__ void decode(const uint32_t (&w)[words], uint32_t &r0, uint32_t &r1) {
        constexpr uint32_t t0 = pack4(book::turbo_book_turbo3, 0);
        constexpr uint32_t t1 = pack4(book::turbo_book_turbo3, 4);
        if (part < 3) {
            look_up_8<t0, t1>(w[part % 3] & 0x77777777u, r0, r1);
        } else {
            const uint32_t low = (w[0] >> 3) & 0x11111111u;
            const uint32_t middle = low | ((w[1] >> 2) & 0x22222222u);
            look_up_8<t0, t1>(middle | ((w[2] >> 1) & 0x44444444u), r0, r1);
        }
    }
};

// 4 bits: a code a nibble; sixteen entries are two tables of eight and a choice by the top bit.
struct reader_4bit : reader_scalar<4> {
    template <int part>
    static __device__ __forceinline__ void decode(const uint32_t (&w)[words], uint32_t &r0, uint32_t &r1) {
        constexpr uint32_t t0 = pack4(book::turbo_book_turbo4, 0), t1 = pack4(book::turbo_book_turbo4, 4);
        constexpr uint32_t t2 = pack4(book::turbo_book_turbo4, 8), t3 = pack4(book::turbo_book_turbo4, 12);
        const uint32_t codes = w[part] & 0x77777777u;
        const uint32_t tops = (w[part] >> 3) & 0x11111111u;
        uint32_t low[2], high[2];
        look_up_8<t0, t1>(codes, low[0], low[1]);
        look_up_8<t2, t3>(codes, high[0], high[1]);
        uint32_t mask[2];
        look_up_8<0x0000ff00u, 0u>(tops, mask[0], mask[1]);
        r0 = (low[0] & ~mask[0]) | (high[0] & mask[0]);
        r1 = (low[1] & ~mask[1]) | (high[1] & mask[1]);
    }
};

} // namespace turbo_cuda
