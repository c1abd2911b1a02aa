// Codes of a staged tile of 64 tokens as operands of warpgroup products, in registers (attend_batch.cuh).
//
// Of keys, as signed bytes, the rows of the product are tokens: each of the four warps unpacks 16 of them whole. Of
// values, as halves, its rows are the values of the head: each warp unpacks one part (decode.cuh) of every token.

#pragma once

#include "attend_half.cuh"

namespace turbo_cuda {

// Where a lane finds its codes of a staged tile: bytes from where that begins, and the shift of its words (code_place);
// and the scale of its block.
struct lane_codes {
    uint32_t words, shift, scale;

    __device__ __forceinline__ lane_codes(const code_place &place, uint32_t block)
        : words((uint32_t) reinterpret_cast<uintptr_t>(place.words)), shift(place.shift), scale(block) {}
    __device__ __forceinline__ void keep() {
        turbo_cuda::keep(words), turbo_cuda::keep(shift), turbo_cuda::keep(scale);
    }
    __device__ __forceinline__ code_place in(const uint8_t *tile) const { return {tile + words, shift, 0u}; }
};

// Keys of 16 tokens from `first` on: a lane has the quarter t of the token g and of the one eight further.
template <int format> struct key_codes {
    using reader = typename reader_of<format, 32, 2>::type;

    static __device__ __forceinline__ lane_codes find(uint32_t block, int t) {
        return {reader::place(nullptr, block, t), block};
    }
    // a[part] is the operand of 32 values, in the order in which queries lie (store_query_bytes).
    static __device__ __forceinline__ void operand(uint32_t (&a)[4][4], const uint8_t *table, const code_place &place,
                                                   uint32_t step) {
        const reader codes(table);
        uint32_t w0[reader::words], w1[reader::words];
        reader::load(w0, place, 0);
        reader::load(w1, place, step);
        codes.template decode<0>(w0, a[0][0], a[0][2]);
        codes.template decode<0>(w1, a[0][1], a[0][3]);
        codes.template decode<1>(w0, a[1][0], a[1][2]);
        codes.template decode<1>(w1, a[1][1], a[1][3]);
        codes.template decode<2>(w0, a[2][0], a[2][2]);
        codes.template decode<2>(w1, a[2][1], a[2][3]);
        codes.template decode<3>(w0, a[3][0], a[3][2]);
        codes.template decode<3>(w1, a[3][1], a[3][3]);
    }
    static __device__ __forceinline__ float scale(const uint8_t *tile, uint32_t block) {
        return reader::scale(tile, block);
    }
};

// Readers of one part of a quarter, which is the same for a warp, as unsigned bytes.
template <int format> struct part_reader;
template <> struct part_reader<KV_TURBO2> {
    static constexpr int words = 1;
    reader_2bit<32, unsigned_bias> codes;
    int shift;

    __device__ __forceinline__ part_reader(const uint8_t *table, int part) : codes(table), shift(part / 2 * 2) {}
    static __device__ __forceinline__ code_place place(uint32_t block, int t, int part) {
        return place_at_bit(nullptr, (block + 2 + 8 * t + 4 * (part & 1)) * 8);
    }
    __device__ __forceinline__ void decode(const uint32_t (&w)[1], uint32_t &r0, uint32_t &r1) const {
        look_up_8(codes.table.entry[0], codes.table.entry[0], w[0] >> shift & 0x33333333u, r0, r1);
    }
};
template <> struct part_reader<KV_TURBO3> { // but for the last one
    static constexpr int words = 1;
    reader_3bit<32, unsigned_bias> codes;

    __device__ __forceinline__ part_reader(const uint8_t *table, int) : codes(table) {}
    static __device__ __forceinline__ code_place place(uint32_t block, int t, int part) {
        return place_at_bit(nullptr, (block + 2 + 12 * t + 4 * (part < 3 ? part : 0)) * 8);
    }
    __device__ __forceinline__ void decode(const uint32_t (&w)[1], uint32_t &r0, uint32_t &r1) const {
        look_up_8(codes.table.entry[0], codes.table.entry[1], w[0] & 0x77777777u, r0, r1);
    }
};
struct last_part_3bit {
    static constexpr int words = 3;
    reader_3bit<32, unsigned_bias> codes;

    __device__ __forceinline__ last_part_3bit(const uint8_t *table, int) : codes(table) {}
    __device__ __forceinline__ void decode(const uint32_t (&w)[3], uint32_t &r0, uint32_t &r1) const {
        codes.template decode<3>(w, r0, r1);
    }
};
template <> struct part_reader<KV_TURBO4> {
    static constexpr int words = 1;
    reader_4bit<32, unsigned_bias> codes;

    __device__ __forceinline__ part_reader(const uint8_t *table, int) : codes(table) {}
    static __device__ __forceinline__ code_place place(uint32_t block, int t, int part) {
        return place_at_bit(nullptr, (block + 2 + 16 * t + 4 * part) * 8);
    }
    __device__ __forceinline__ void decode(const uint32_t (&w)[1], uint32_t &r0, uint32_t &r1) const {
        const uint32_t x[4] = {w[0], 0, 0, 0};
        codes.template decode<0>(x, r0, r1);
    }
};
template <class format> struct part_trellis {
    using reader = reader_trellis<format, 8>;
    static constexpr int words = reader::words;
    reader codes;

    __device__ __forceinline__ part_trellis(const uint8_t *table, int) : codes(table) {}
    static __device__ __forceinline__ code_place place(uint32_t block, int t, int part) {
        return place_at_bit(nullptr, block * 8 + 16 + format::bits * (32 * t + 8 * part + 1) - format::window);
    }
    __device__ __forceinline__ void decode(const uint32_t (&w)[words], uint32_t &r0, uint32_t &r1) const {
        codes.template decode<0>(w, r0, r1); // keys have the same table
        r0 ^= unsigned_bias, r1 ^= unsigned_bias;
    }
};
template <> struct part_reader<KV_TURBO2_TCQ> : part_trellis<format_turbo2_tcq> {
    using part_trellis::part_trellis;
};
template <> struct part_reader<KV_TURBO3_TCQ> : part_trellis<format_turbo3_tcq> {
    using part_trellis::part_trellis;
};
template <> struct part_reader<KV_TURBO4_TCQ> : part_trellis<format_turbo4_tcq> {
    using part_trellis::part_trellis;
};

// Bytes 0 and 2 of a code's register and its bytes 1 and 3 as halves: a byte, value + 128, becomes the half 1024 + byte
// by setting its upper one.
struct byte_pairs {
    register_table<1> upper;

    __device__ __forceinline__ byte_pairs() { upper.set({0x64646464u}); }
    __device__ __forceinline__ void operator()(uint32_t bytes, uint32_t &even, uint32_t &odd) const {
        const __half2 bias = __float2half2_rn(-1152.0f);
        even = half2_bits(__hadd2(as_half2(byte_permute(bytes, upper.entry[0], 0x4240)), bias));
        odd = half2_bits(__hadd2(as_half2(byte_permute(bytes, upper.entry[0], 0x4341)), bias));
    }
};

// A part of the values of 64 tokens: a[c][i] is the operand of the 16 tokens from 16i on, whose rows g and g + 8 are
// the values value_of(c, part, g) and the one behind it.
using values_operand = uint32_t[2][4][4];
template <class reader> static __device__ __forceinline__ void value_operand(values_operand &a, const reader &codes,
                                                                             const code_place &place, uint32_t step) {
    const byte_pairs to_halves;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t w0[reader::words], w1[reader::words], x[2], y[2];
        load_words<0>(w0, place, 2 * i * step);
        load_words<0>(w1, place, (2 * i + 1) * step);
        codes.decode(w0, x[0], x[1]);
        codes.decode(w1, y[0], y[1]);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            to_halves(transpose_8x8(x[c]), a[c][i][0], a[c][i][1]);
            to_halves(transpose_8x8(y[c]), a[c][i][2], a[c][i][3]);
        }
    }
}
template <int format> struct value_codes {
    using reader = part_reader<format>;

    static __device__ __forceinline__ lane_codes find(uint32_t block, int t, int part) {
        return {reader::place(block, t, part), block};
    }
    static __device__ __forceinline__ void operand(values_operand &a, const uint8_t *table, const code_place &place,
                                                   uint32_t step, int part) {
        if constexpr (format == KV_TURBO3) {
            if (part == 3) {
                return value_operand(a, last_part_3bit(table, part), place, step);
            }
        }
        value_operand(a, reader(table, part), place, step);
    }
};
static __device__ __forceinline__ int value_of(int chunk, int part, int g) {
    return 32 * (g >> 1) + 4 * (2 * part + chunk) + 2 * (g & 1);
}

template <int format> struct format_tag {
    static constexpr int value = format;
};

// Call `work` with a format, as a format_tag; `known`: what it is, or family_any. The branch is the same for all lanes.
template <int known, class work_type>
static __device__ __forceinline__ auto with_codes(int format, const work_type &work) {
    if constexpr (known >= 0) {
        return work(format_tag<known>());
    } else {
        switch (format) {
            case KV_TURBO2: return work(format_tag<KV_TURBO2>());
            case KV_TURBO3: return work(format_tag<KV_TURBO3>());
            case KV_TURBO4: return work(format_tag<KV_TURBO4>());
            case KV_TURBO2_TCQ: return work(format_tag<KV_TURBO2_TCQ>());
            case KV_TURBO3_TCQ: return work(format_tag<KV_TURBO3_TCQ>());
            default: return work(format_tag<KV_TURBO4_TCQ>());
        }
    }
}

} // namespace turbo_cuda
