// AVX2: blocks to integers. Scalar codes by byte shuffles, 32 at a time; trellis windows by shifts and table loads.

#include "simd.h"

#ifdef TURBO_HAVE_X86

TURBO_AVX2 INLINE __m128i low_nibbles(__m128i v) {
    return _mm_and_si128(v, _mm_set1_epi8(15));
}

TURBO_AVX2 INLINE __m128i high_nibbles(__m128i v) {
    return _mm_and_si128(_mm_srli_epi16(v, 4), _mm_set1_epi8(15));
}

TURBO_AVX2 INLINE void store(int8_t *codes, __m128i entries) {
    _mm_storeu_si128((__m128i *) (void *) codes, entries);
}

// Nibble i of the 16 bytes, looked up, to codes[i].
TURBO_AVX2 INLINE void store_nibbles(int8_t *codes, __m128i words, __m128i table) {
    const __m128i low = low_nibbles(words);
    const __m128i high = high_nibbles(words);
    store(codes, _mm_shuffle_epi8(table, _mm_unpacklo_epi8(low, high)));
    store(codes + 16, _mm_shuffle_epi8(table, _mm_unpackhi_epi8(low, high)));
}

// Two groups of 32 two-bit codes: a nibble holds the codes of values i and i + 16.
TURBO_AVX2 INLINE void unpack_2(const uint8_t *bytes, int n, int8_t *codes, __m128i of_low, __m128i of_high) {
    for (int i = 0; i < n; i += 64, bytes += 16, codes += 64) {
        const __m128i words = _mm_loadu_si128((const __m128i *) (const void *) bytes);
        const __m128i low = low_nibbles(words);
        const __m128i high = high_nibbles(words);
        const __m128i first = _mm_unpacklo_epi8(low, high);
        const __m128i second = _mm_unpackhi_epi8(low, high);
        store(codes, _mm_shuffle_epi8(of_low, first));
        store(codes + 16, _mm_shuffle_epi8(of_high, first));
        store(codes + 32, _mm_shuffle_epi8(of_low, second));
        store(codes + 48, _mm_shuffle_epi8(of_high, second));
    }
}

// A group of 32 three-bit codes: three words of nibbles, whose fourth bits make a fourth word.
TURBO_AVX2 INLINE void unpack_3(const uint8_t *bytes, int n, int8_t *codes, __m128i table) {
    const __m128i to_last_0 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 1, 2, 3);
    const __m128i to_last_1 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 4, 5, 6, 7);
    const __m128i to_last_2 = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 8, 9, 10, 11);
    for (int i = 0; i < n; i += 32, bytes += 12, codes += 32) {
        int32_t third;
        memcpy(&third, bytes + 8, sizeof third);
        const __m128i words = _mm_insert_epi32(_mm_loadl_epi64((const __m128i *) (const void *) bytes), third, 2);
        __m128i fourth = _mm_and_si128(words, _mm_set1_epi32((int) 0x88888888));
        fourth = _mm_srlv_epi32(fourth, _mm_setr_epi32(3, 2, 1, 0));
        fourth = _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(fourth, to_last_0), _mm_shuffle_epi8(fourth, to_last_1)),
                              _mm_shuffle_epi8(fourth, to_last_2));
        store_nibbles(codes, _mm_or_si128(_mm_and_si128(words, _mm_set1_epi32(0x77777777)), fourth), table);
    }
}

TURBO_AVX2 INLINE void unpack_4(const uint8_t *bytes, int n, int8_t *codes, __m128i table) {
    for (int i = 0; i < n; i += 32, bytes += 16, codes += 32) {
        store_nibbles(codes, _mm_loadu_si128((const __m128i *) (const void *) bytes), table);
    }
}

// One value a step. Eight windows are 8 k + 6 bits, from bit 2 of byte 1 + k j on: they fit a 64-bit word, which for
// the last ones is read from further in front so as to end with the block.
TURBO_AVX2 INLINE void unpack_trellis(const uint8_t *block, int n, int8_t *codes,
                                      const int8_t *entries, const int k) {
    const uint64_t mask = (1u << (k + 6)) - 1;
    const int last = TURBO_BLOCK_BYTES(k, n) - 8;
    for (int j = 0; j < n / 8; j++) {
        const int first = 1 + k * j;
        const int from = first < last ? first : last;
        uint64_t word;
        memcpy(&word, block + from, sizeof word);
        word >>= 2 + 8 * (first - from);
        uint64_t packed = 0;
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            packed |= (uint64_t) (uint8_t) entries[word & mask] << 8 * i;
            word >>= k;
        }
        memcpy(codes + 8 * j, &packed, sizeof packed);
    }
}

TURBO_AVX2 void turbo_avx2_unpack(const turbo_book *book, const uint8_t *blocks, size_t stride, int64_t count, int n,
                                  int8_t *codes) {
    if (book->step != 1) {
        turbo_kernels_portable.unpack(book, blocks, stride, count, n, codes);
        return;
    }
    int8_t low_entries[16], high_entries[16];
    for (int i = 0; i < 16; i++) {
        low_entries[i] = book->entries[i % book->entry_count];
        high_entries[i] = book->entries[(i >> 2) % book->entry_count];
    }
    const __m128i table = _mm_loadu_si128((const __m128i *) (const void *) low_entries);
    const __m128i high_table = _mm_loadu_si128((const __m128i *) (const void *) high_entries);
    for (int64_t b = 0; b < count; b++, blocks += stride, codes += n) {
        const uint8_t *bytes = blocks + TURBO_HEADER_BITS / 8;
        switch (book->window) {
            case 8: unpack_trellis(blocks, n, codes, book->entries, 2); break;
            case 9: unpack_trellis(blocks, n, codes, book->entries, 3); break;
            case 10: unpack_trellis(blocks, n, codes, book->entries, 4); break;
            default:
                switch (book->bits) {
                    case 2: unpack_2(bytes, n, codes, table, high_table); break;
                    case 3: unpack_3(bytes, n, codes, table); break;
                    default: unpack_4(bytes, n, codes, table); break;
                }
        }
    }
}

#endif // TURBO_HAVE_X86
