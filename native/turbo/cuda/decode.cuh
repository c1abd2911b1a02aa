// Packed codes to signed bytes, in registers.
//
// Work is laid out for tensor-core products of 8 tokens a warp: lane 4r+t owns token r and the t-th quarter of its
// block, `values` = 32 values of a 128-value block or 16 of a 64-value one, in the order of attend_shape::position. A
// part is 8 of them: two registers of four bytes. A reader loads the code words of its quarter once and then hands out
// parts.

#pragma once

#include "ptx.cuh"
#include "formats.cuh"

namespace turbo_cuda {

// Where a lane finds the codes of its quarter of a block: whole words, to be shifted right by `shift` bits (funnelled),
// and then by `half` bits (0 or 16: which half of each word is the lane's).
struct code_place {
    const uint8_t *words;
    uint32_t shift, half;
};

static __device__ __forceinline__ code_place place_at_bit(const uint8_t *shared, uint32_t bit) {
    return {shared + (bit >> 5) * 4, bit & 31u, 0u};
}

// `n` words from a place, `skip` bytes on (a multiple of 16). `last_bits`: where memory may end behind what is wanted,
// the bits that are; the word behind them is then left alone. 0: there is more.
template <int last_bits, int n>
static __device__ __forceinline__ void load_words(uint32_t (&w)[n], const code_place &place, uint32_t skip) {
    const uint32_t *base = reinterpret_cast<const uint32_t *>(place.words + skip);
    uint32_t word = base[0];
#pragma unroll
    for (int i = 0; i < n; i++) {
        const bool wanted = last_bits == 0 || place.shift + last_bits > 32u * (i + 1);
        const uint32_t next = wanted ? base[i + 1] : 0u;
        w[i] = __funnelshift_r(word, next, place.shift);
        word = next;
    }
}

static __device__ __forceinline__ float load_half(const uint8_t *shared, uint32_t offset) {
    return __half2float(*reinterpret_cast<const __half *>(shared + offset));
}

// Readers that are asked for unsigned bytes: value + 128.
static constexpr uint32_t unsigned_bias = 0x80808080u;

// A codebook of `entries` bytes in registers. Written through asm so that the compiler keeps it there: left to itself
// it loads the constants again at every use, one instruction in ten.
template <int words> struct register_table {
    uint32_t entry[words];

    __device__ __forceinline__ void set(const uint32_t (&values)[words]) {
#pragma unroll
        for (int i = 0; i < words; i++) {
            asm volatile("mov.b32 %0, %1;" : "=r"(entry[i]) : "r"(values[i]));
        }
    }
    // In a register indeed, not copied to one from a uniform register wherever it is used. (One operand of a permute
    // may be a constant, so every other entry does.)
    __device__ __forceinline__ void keep_even() {
#pragma unroll
        for (int i = 0; i < words; i += 2) {
            keep(entry[i]);
        }
    }
};

// Eight entries of a table: selector nibbles must have their top bit clear.
static __device__ __forceinline__ void look_up_8(uint32_t t0, uint32_t t1, uint32_t selectors, uint32_t &r0,
                                                 uint32_t &r1) {
    r0 = byte_permute(t0, t1, selectors);
    r1 = byte_permute(t0, t1, upper_half(selectors));
}

// Words x and y of two tokens become those of two tokens in turns: x the values 0, 2, 4, 6 of both, y the values 1, 3,
// 5, 7. Decoded, they give pairs of one value and two tokens, which is what a transpose needs.
template <int n> static __device__ __forceinline__ void exchange_nibbles(uint32_t (&x)[n], uint32_t (&y)[n]) {
    constexpr uint32_t even = 0x0f0f0f0fu;
#pragma unroll
    for (int i = 0; i < n; i++) {
        const uint32_t odd = choose_bits(even, x[i] >> 4, y[i]);
        x[i] = choose_bits(even, x[i], y[i] << 4);
        y[i] = odd;
    }
}

// What the scalar types share: an f16 scale, then one word a bit for every 32 values. A lane has a whole word of each
// bit (32 values) or half of one (16 values).
template <int bits, int values, uint32_t bias = 0> struct reader_scalar {
    static constexpr int words = bits;
    static constexpr bool in_nibbles = true;         // exchange_nibbles may be used
    static constexpr bool in_halves = false;         // decode_halves is there
    static constexpr int zero = bias == 0 ? 0 : 128; // the byte that stands for 0; if not 0, bytes are unsigned
    static constexpr float step = 1.0f;              // of the bytes, in codebook steps

    static __device__ __forceinline__ code_place place(const uint8_t *shared, uint32_t block, int t) {
        code_place at = place_at_bit(shared, (block + 2 + 4 * bits * (values == 32 ? t : t >> 1)) * 8);
        at.half = values == 32 ? 0u : 16u * (t & 1);
        return at;
    }
    template <bool at_end = false>
    static __device__ __forceinline__ void load(uint32_t (&w)[words], const code_place &at, uint32_t skip) {
        load_words<at_end ? 32 * bits : 0>(w, at, skip);
        if (values == 16) {
#pragma unroll
            for (int i = 0; i < words; i++) {
                w[i] >>= at.half;
            }
        }
    }
    static __device__ __forceinline__ float scale(const uint8_t *shared, uint32_t block) {
        return load_half(shared, block);
    }
};

// Scalar codes, 2 bits: w0 and w1 hold values 0-15 in the low and 16-31 in the high two bits of each nibble.
template <int values, uint32_t bias = 0> struct reader_2bit : reader_scalar<2, values, bias> {
    register_table<1> table;

    __device__ __forceinline__ explicit reader_2bit(const uint8_t *) {
        constexpr uint32_t t0 = pack4(book::turbo_book_turbo2, 0);
        table.set({t0 ^ bias});
    }
    template <int part>
    __device__ __forceinline__ void decode(const uint32_t (&w)[2], uint32_t &r0, uint32_t &r1) const {
        const uint32_t t0 = table.entry[0];
        if (values == 32) {
            look_up_8(t0, t0, (part < 2 ? w[part & 1] : w[part & 1] >> 2) & 0x33333333u, r0, r1);
        } else {
            r0 = byte_permute(t0, t0, (part == 0 ? w[0] : w[0] >> 2) & 0x3333u);
            r1 = byte_permute(t0, t0, (part == 0 ? w[1] : w[1] >> 2) & 0x3333u);
        }
    }
};

// 3 bits: nibbles of w0-w2 hold values 0-23, their top bits the values 24-31.
template <int values, uint32_t bias = 0> struct reader_3bit : reader_scalar<3, values, bias> {
    register_table<2> table;

    __device__ __forceinline__ explicit reader_3bit(const uint8_t *) {
        constexpr uint32_t t0 = pack4(book::turbo_book_turbo3, 0), t1 = pack4(book::turbo_book_turbo3, 4);
        table.set({t0 ^ bias, t1 ^ bias});
        table.keep_even();
    }
    static __device__ __forceinline__ uint32_t last_codes(const uint32_t (&w)[3]) {
        const uint32_t low = ((w[0] >> 3) & 0x11111111u) | ((w[1] >> 2) & 0x22222222u);
        return low | ((w[2] >> 1) & 0x44444444u);
    }
    template <int part>
    __device__ __forceinline__ void decode(const uint32_t (&w)[3], uint32_t &r0, uint32_t &r1) const {
        const uint32_t t0 = table.entry[0], t1 = table.entry[1];
        if (values == 32) {
            look_up_8(t0, t1, part < 3 ? w[part % 3] & 0x77777777u : last_codes(w), r0, r1);
        } else {
            r0 = byte_permute(t0, t1, w[part == 0 ? 0 : 2] & 0x7777u);
            r1 = byte_permute(t0, t1, part == 0 ? w[1] & 0x7777u : last_codes(w));
        }
    }
};

// 4 bits: a code a nibble; sixteen entries are two tables of eight and a choice by the top bit.
template <int values, uint32_t bias = 0> struct reader_4bit : reader_scalar<4, values, bias> {
    register_table<5> table;

    __device__ __forceinline__ explicit reader_4bit(const uint8_t *) {
        constexpr uint32_t t0 = pack4(book::turbo_book_turbo4, 0), t1 = pack4(book::turbo_book_turbo4, 4);
        constexpr uint32_t t2 = pack4(book::turbo_book_turbo4, 8), t3 = pack4(book::turbo_book_turbo4, 12);
        table.set({t0 ^ bias, t1 ^ bias, t2 ^ bias, t3 ^ bias, 0x0000ff00u});
    }
    __device__ __forceinline__ uint32_t look_up(uint32_t codes, uint32_t tops) const {
        const uint32_t low = byte_permute(table.entry[0], table.entry[1], codes),
                       high = byte_permute(table.entry[2], table.entry[3], codes);
        const uint32_t mask = byte_permute(table.entry[4], table.entry[4], tops);
        return (low & ~mask) | (high & mask);
    }
    template <int part>
    __device__ __forceinline__ void decode(const uint32_t (&w)[4], uint32_t &r0, uint32_t &r1) const {
        if (values == 32) {
            const uint32_t codes = w[part] & 0x77777777u, tops = (w[part] >> 3) & 0x11111111u;
            r0 = look_up(codes, tops);
            r1 = look_up(upper_half(codes), upper_half(tops));
        } else {
            r0 = look_up(w[2 * part % 4] & 0x7777u, (w[2 * part % 4] >> 3) & 0x1111u);
            r1 = look_up(w[(2 * part + 1) % 4] & 0x7777u, (w[(2 * part + 1) % 4] >> 3) & 0x1111u);
        }
    }
};

// The same for attention: bytes from 0 to 126, 63 of which stand for 0. That rounds the codebook, which adds 0.6 % to
// what 4 bits cost in squared error, and leaves the top bit free: a permute whose selector has its top bit set gives
// copies of a byte's top bit, here zeros, so that tables for either half of the codes may just be added.
template <int values> struct reader_4bit_rounded : reader_scalar<4, values> {
    static constexpr bool in_halves = true;
    static constexpr int zero = 63;
    static constexpr float step = 1.6458747f; // least squares over Gaussian values
    register_table<4> table;

    static __device__ constexpr uint32_t entry(int code) {
        return (uint32_t) (zero + 0.5f + 0.6049f * book::turbo_book_turbo4[code]);
    }
    static __device__ constexpr uint32_t entries(int code) {
        return entry(code) | entry(code + 1) << 8 | entry(code + 2) << 16 | entry(code + 3) << 24;
    }
    __device__ __forceinline__ explicit reader_4bit_rounded(const uint8_t *) {
        table.set({entries(0), entries(4), entries(8), entries(12)});
        table.keep_even();
    }
    // Those of the lower half of the codes, zeros elsewhere, and those of the upper half.
    template <int part> __device__ __forceinline__ void decode_halves(const uint32_t (&w)[4], uint32_t (&low)[2],
                                                                      uint32_t (&high)[2]) const {
        constexpr uint32_t tops = 0x88888888u;
        uint32_t codes[2], others[2];
        if (values == 32) {
            codes[0] = w[part], codes[1] = upper_half(w[part]);
            others[0] = w[part] ^ tops, others[1] = upper_half(others[0]);
        } else {
            codes[0] = w[2 * part % 4], codes[1] = w[(2 * part + 1) % 4];
            others[0] = codes[0] ^ tops, others[1] = codes[1] ^ tops;
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            low[i] = byte_permute(table.entry[0], table.entry[1], codes[i]);
            high[i] = byte_permute(table.entry[2], table.entry[3], others[i]);
        }
    }
    template <int part>
    __device__ __forceinline__ void decode(const uint32_t (&w)[4], uint32_t &r0, uint32_t &r1) const {
        uint32_t low[2], high[2];
        decode_halves<part>(w, low, high);
        r0 = low[0] + high[0], r1 = low[1] + high[1];
    }
};

// Trellis codes. One look-up gives `count` neighbouring values (2 to 4): a table of 2^span entries of two or four
// bytes, span = window + (count - 1) * bits, lies in shared memory. Look-ups of a warp are random, so each meets three
// to four bank conflicts; several copies in separate banks were slower (docs/performance.md).
template <class format, int count> struct look_up_table {
    static constexpr int span = format::window + (count - 1) * format::bits;
    static constexpr int entry_bytes = count == 2 ? 2 : 4;
    static constexpr int bytes = entry_bytes << span;

    // Eight pairs at a time: the first values are neighbours in the codebook, the second ones hardly differ.
    static __device__ __forceinline__ void fill(uint8_t *table, int thread, int threads, uint32_t bias = 0) {
        static_assert(format::bits >= 2, "neighbours share their later values");
        constexpr int at_once = 16 / entry_bytes;
        constexpr int mask = (1 << format::window) - 1;
        auto entry = [&](int i, int value) {
            return (uint32_t) (uint8_t) format::entry(i >> value * format::bits & mask);
        };
        for (int i = thread * at_once; i < 1 << span; i += threads * at_once) {
            uint32_t words[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                if constexpr (count == 2) {
                    const uint32_t second = entry(i + 2 * j, 1); // the same for both
                    words[j] = entry(i + 2 * j, 0) | second << 8 | entry(i + 2 * j + 1, 0) << 16 | second << 24;
                } else {
                    words[j] = entry(i + j, 0) | entry(i, 1) << 8 | entry(i, 2) << 16;
                    words[j] |= count == 4 ? entry(i, count - 1) << 24 : 0u;
                }
            }
            reinterpret_cast<uint4 *>(table)[i / at_once] =
                make_uint4(words[0] ^ bias, words[1] ^ bias, words[2] ^ bias, words[3] ^ bias);
        }
    }
};

// `count` bits of w from bit `at`, moved to bit `to`.
template <int at, int count, int to, int words>
static __device__ __forceinline__ uint32_t bits_at(const uint32_t (&w)[words]) {
    constexpr int from = at - to, word = from < 0 ? 0 : from / 32, shift = from < 0 ? 0 : from % 32;
    constexpr uint32_t mask = ((1u << count) - 1u) << to;
    if constexpr (from < 0) {
        return (w[0] << -from) & mask;
    } else if constexpr (shift + to + count <= 32) {
        return (w[word] >> shift) & mask;
    } else {
        return __funnelshift_r(w[word], w[word + 1], shift) & mask;
    }
}

template <class format, int values, int count = 2> struct reader_trellis {
    static constexpr bool in_nibbles = false, in_halves = false;
    static constexpr int zero = 0;
    static constexpr float step = 1.0f;
    using table_type = look_up_table<format, count>;
    static constexpr int bits = format::bits;
    // Of a lane's values, where the last look-up begins: three at a time, it gives one value too many.
    static constexpr int last_look_up = values == 16 ? 3 * 8 + 4 - count : count == 3 ? 30 : values - count;
    static constexpr int last_bit = last_look_up * bits + table_type::span;
    static constexpr int words = (last_bit + 31) / 32;
    const uint8_t *table;

    __device__ __forceinline__ explicit reader_trellis(const uint8_t *start) : table(start) {}

    static __device__ __forceinline__ code_place place(const uint8_t *shared, uint32_t block, int t) {
        const int first = values == 32 ? 32 * t : 32 * (t >> 1) + 4 * (t & 1);
        return place_at_bit(shared, block * 8 + 16 + bits * (first + 1) - format::window);
    }
    template <bool at_end = false>
    static __device__ __forceinline__ void load(uint32_t (&w)[words], const code_place &at, uint32_t skip) {
        load_words<at_end ? last_bit : 0>(w, at, skip);
    }
    static __device__ __forceinline__ float scale(const uint8_t *shared, uint32_t block) {
        const uint32_t header = *reinterpret_cast<const uint16_t *>(shared + block);
        return __half2float(__ushort_as_half((unsigned short) ((header & 0x3ffu) << 5)));
    }
    // Four values whose windows begin at bit `at` of the quarter.
    template <int at> __device__ __forceinline__ uint32_t four(const uint32_t (&w)[words]) const {
        constexpr int span = table_type::span;
        if constexpr (count == 4) {
            return *reinterpret_cast<const uint32_t *>(table + bits_at<at, span, 2>(w));
        } else {
            const uint32_t low = *reinterpret_cast<const uint16_t *>(table + bits_at<at, span, 1>(w));
            const uint32_t high = *reinterpret_cast<const uint16_t *>(table + bits_at<at + 2 * bits, span, 1>(w));
            return byte_permute(low, high, 0x5410);
        }
    }
    template <int part>
    __device__ __forceinline__ void decode(const uint32_t (&w)[words], uint32_t &r0, uint32_t &r1) const {
        constexpr int first = values == 16 ? 16 * part * bits : 8 * part * bits;
        if constexpr (count == 3) { // eight values are three, three and two
            static_assert(values == 32, "eight in a row");
            constexpr int span = table_type::span;
            auto three = [&](uint32_t at) { return *reinterpret_cast<const uint32_t *>(table + at); };
            const uint32_t a = three(bits_at<first, span, 2>(w)), b = three(bits_at<first + 3 * bits, span, 2>(w)),
                           c = three(bits_at<first + 6 * bits, span, 2>(w));
            r0 = byte_permute(a, b, 0x4210);
            r1 = byte_permute(b, c, 0x5421);
        } else {
            constexpr int second = values == 16 ? first + 8 * bits : first + 4 * bits;
            r0 = four<first>(w);
            r1 = four<second>(w);
        }
    }
};

// The reader of a format of our own; `count` values a look-up of the trellis types.
template <int format, int values, int count> struct reader_of;
template <int values, int count> struct reader_of<KV_TURBO2, values, count> {
    using type = reader_2bit<values>;
};
template <int values, int count> struct reader_of<KV_TURBO3, values, count> {
    using type = reader_3bit<values>;
};
template <int values, int count> struct reader_of<KV_TURBO4, values, count> {
    using type = reader_4bit<values>;
};
template <int values, int count> struct reader_of<KV_TURBO2_TCQ, values, count> {
    using type = reader_trellis<format_turbo2_tcq, values, count>;
};
template <int values, int count> struct reader_of<KV_TURBO3_TCQ, values, count> {
    using type = reader_trellis<format_turbo3_tcq, values, count>;
};
template <int values, int count> struct reader_of<KV_TURBO4_TCQ, values, count> {
    using type = reader_trellis<format_turbo4_tcq, values, count>;
};

// The same for products of bytes in which `zero` and `step` of the reader are allowed for: of keys, and of values.
template <int format, int values, int count> struct key_reader_of : reader_of<format, values, count> {};
template <int values, int count> struct key_reader_of<KV_TURBO4, values, count> {
    using type = reader_4bit_rounded<values>;
};
template <int format, int values, int count> struct value_reader_of : key_reader_of<format, values, count> {};
template <int values, int count> struct value_reader_of<KV_TURBO2, values, count> {
    using type = reader_2bit<values, unsigned_bias>;
};
template <int values, int count> struct value_reader_of<KV_TURBO3, values, count> {
    using type = reader_3bit<values, unsigned_bias>;
};

// Bytes of the table of a format that gives `count` values a look-up, 0 for formats without one.
static __host__ __device__ constexpr int look_up_bytes(int format, int count) {
    switch (format) {
        case KV_TURBO2_TCQ:
            return count == 4 ? look_up_table<format_turbo2_tcq, 4>::bytes : look_up_table<format_turbo2_tcq, 2>::bytes;
        case KV_TURBO3_TCQ:
            return count == 3 ? look_up_table<format_turbo3_tcq, 3>::bytes : look_up_table<format_turbo3_tcq, 2>::bytes;
        case KV_TURBO4_TCQ: return look_up_table<format_turbo4_tcq, 2>::bytes;
        default: return 0;
    }
}

static __device__ __forceinline__ void fill_pair_table(int format, uint8_t *table, int thread, int threads,
                                                       uint32_t bias = 0) {
    switch (format) {
        case KV_TURBO2_TCQ: look_up_table<format_turbo2_tcq, 2>::fill(table, thread, threads, bias); break;
        case KV_TURBO3_TCQ: look_up_table<format_turbo3_tcq, 2>::fill(table, thread, threads, bias); break;
        case KV_TURBO4_TCQ: look_up_table<format_turbo4_tcq, 2>::fill(table, thread, threads, bias); break;
    }
}

template <int format, int count>
static __device__ __forceinline__ void fill_table(uint8_t *table, int thread, int threads) {
    if constexpr (count == 4) {
        look_up_table<format_turbo2_tcq, 4>::fill(table, thread, threads);
    } else if constexpr (count == 3) {
        look_up_table<format_turbo3_tcq, 3>::fill(table, thread, threads);
    } else {
        fill_pair_table(format, table, thread, threads);
    }
}

} // namespace turbo_cuda
