// AVX-512 with VBMI: trellis blocks to integers, 64 windows at a time from codebooks held in registers.
// Scalar blocks are as fast in unpack_avx2.c.

#include "simd.h"

#ifdef TURBO_HAVE_X86

// Where 64 windows lie: 8 a 64-bit word, word j being bytes k j .. k j + 7 from byte 1 of the half block on.
typedef struct window_map {
    __m512i gather;  // bytes to words
    __m512i low;     // bit offsets of the windows
    __m512i bit_8, bit_9; // bit offsets that put this bit of the window at the top of a byte
} window_map;

TURBO_AVX512_VBMI INLINE window_map make_map(int k) {
    uint8_t gather[64], low[64], bit_8[64], bit_9[64];
    for (int i = 0; i < 64; i++) {
        gather[i] = (uint8_t) (k * (i / 8) + i % 8);
        low[i] = (uint8_t) (2 + k * (i % 8));
        bit_8[i] = (uint8_t) (low[i] + 1);
        bit_9[i] = (uint8_t) (low[i] + 2);
    }
    const window_map map = {_mm512_loadu_si512(gather), _mm512_loadu_si512(low), _mm512_loadu_si512(bit_8),
                            _mm512_loadu_si512(bit_9)};
    return map;
}

// Entries of 64 windows of L bits: a look-up of 128 entries by bits 0-6 in each part, chosen by the bits above.
TURBO_AVX512_VBMI INLINE __m512i look_up(const __m512i *book, const window_map *map, __m512i words, const int L) {
    const __m512i index = _mm512_multishift_epi64_epi8(map->low, words);
    const __mmask64 bit_7 = _mm512_movepi8_mask(index);
    __m512i parts[8];
#pragma GCC unroll 8
    for (int i = 0; i < 1 << (L - 7); i++) {
        parts[i] = _mm512_permutex2var_epi8(book[2 * i], index, book[2 * i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 1 << (L - 8); i++) {
        parts[i] = _mm512_mask_mov_epi8(parts[2 * i], bit_7, parts[2 * i + 1]);
    }
    if (L >= 9) {
        const __mmask64 bit_8 = _mm512_movepi8_mask(_mm512_multishift_epi64_epi8(map->bit_8, words));
#pragma GCC unroll 2
        for (int i = 0; i < 1 << (L - 9); i++) {
            parts[i] = _mm512_mask_mov_epi8(parts[2 * i], bit_8, parts[2 * i + 1]);
        }
    }
    if (L >= 10) {
        const __mmask64 bit_9 = _mm512_movepi8_mask(_mm512_multishift_epi64_epi8(map->bit_9, words));
        parts[0] = _mm512_mask_mov_epi8(parts[0], bit_9, parts[1]);
    }
    return parts[0];
}

TURBO_AVX512_VBMI INLINE void unpack_trellis(const turbo_book *book, const uint8_t *blocks, size_t stride,
                                             int64_t count, int n, int8_t *codes, const int k) {
    const window_map map = make_map(k);
    const __mmask64 half = (UINT64_C(2) << 8 * k) - 1; // 8 k + 1 bytes hold 64 windows
    __m512i entries[16];
#pragma GCC unroll 16
    for (int i = 0; i < 1 << k; i++) {
        entries[i] = _mm512_loadu_si512(book->entries + 64 * i);
    }
    for (int64_t b = 0; b < count; b++, blocks += stride) {
        for (int i = 0; i < n; i += 64, codes += 64) {
            const __m512i bytes = _mm512_maskz_loadu_epi8(half, blocks + 1 + k * i / 8);
            const __m512i words = _mm512_permutexvar_epi8(map.gather, bytes);
            _mm512_storeu_si512(codes, look_up(entries, &map, words, k + 6));
        }
    }
}

TURBO_AVX512_VBMI void turbo_avx512_unpack(const turbo_book *book, const uint8_t *blocks, size_t stride, int64_t count,
                                           int n, int8_t *codes) {
    switch (book->step == 1 ? book->window : 0) {
        case 8: unpack_trellis(book, blocks, stride, count, n, codes, 2); break;
        case 9: unpack_trellis(book, blocks, stride, count, n, codes, 3); break;
        case 10: unpack_trellis(book, blocks, stride, count, n, codes, 4); break;
        default: turbo_avx2_unpack(book, blocks, stride, count, n, codes); break;
    }
}

#endif // TURBO_HAVE_X86
