// CPU flash attention kernels for AVX2 with FMA and F16C: float32 for float types, int16 for codes. Compiles without
// -m flags: the target is set below, after all headers, and holds to the end of the file (where templates are
// instantiated).

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "fattn_kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "fattn_int16.h"

namespace turbo_fattn {
namespace {

struct vector8 {
    typedef __m256 reg;
    static constexpr int width = 8;
    static constexpr int panel =
        6; // 6 x 2 sums, 2 tile vectors and a broadcast: 15 of 16 registers (16 with the products of int16)
    static constexpr int score_vectors = 2;
    static constexpr int value_vectors = 2;

    static reg set1(float x) { return _mm256_set1_ps(x); }
    static reg zero() { return _mm256_setzero_ps(); }
    static reg load(const float *from) { return _mm256_loadu_ps(from); }
    static void store(float *to, reg r) { _mm256_storeu_ps(to, r); }
    static reg load_i8(const int8_t *from) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) (const void *) from)));
    }
    static reg load_nibbles(const uint8_t *from, int shift) {
        const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *) (const void *) from));
        return _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(bytes, shift), _mm256_set1_epi32(15)));
    }
    static reg load_f16(const uint16_t *from) {
        return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (const void *) from));
    }
    static reg add(reg a, reg b) { return _mm256_add_ps(a, b); }
    static reg sub(reg a, reg b) { return _mm256_sub_ps(a, b); }
    static reg mul(reg a, reg b) { return _mm256_mul_ps(a, b); }
    static reg div(reg a, reg b) { return _mm256_div_ps(a, b); }
    static reg fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }
    static reg fms(reg a, reg b, reg c) { return _mm256_fmsub_ps(a, b, c); }
    static reg max(reg a, reg b) { return _mm256_max_ps(a, b); }
    static reg select_gt(reg a, reg b, reg x, reg y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
    static reg round(reg x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static reg scale2(reg p, reg n) {
        const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
    }
    static bool any_gt(reg a, reg b) { return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0; }
    static bool any_nan(reg a) { return _mm256_movemask_ps(_mm256_cmp_ps(a, a, _CMP_UNORD_Q)) != 0; }
    static float top(reg x) {
        const __m128 a = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        const __m128 b = _mm_max_ps(a, _mm_movehl_ps(a, a));
        return _mm_cvtss_f32(_mm_max_ss(b, _mm_movehdup_ps(b)));
    }
    static void transpose(reg (&m)[8]) {
        reg pair[8], quad[8];
        for (int i = 0; i < 8; i += 2) {
            pair[i] = _mm256_unpacklo_ps(m[i], m[i + 1]);
            pair[i + 1] = _mm256_unpackhi_ps(m[i], m[i + 1]);
        }
        for (int i = 0; i < 8; i += 4) {
            quad[i] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0x44);
            quad[i + 1] = _mm256_shuffle_ps(pair[i], pair[i + 2], 0xee);
            quad[i + 2] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
            quad[i + 3] = _mm256_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
        }
        for (int i = 0; i < 4; i++) {
            m[i] = _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x20);
            m[i + 4] = _mm256_permute2f128_ps(quad[i], quad[i + 4], 0x31);
        }
    }

    // ---- pairs of int16 ----

    typedef __m256i ints;

    static ints int_zero() { return _mm256_setzero_si256(); }
    static ints int_load(const int32_t *from) { return _mm256_loadu_si256((const __m256i *) (const void *) from); }
    static ints int_set1(int32_t x) { return _mm256_set1_epi32(x); }
    static reg to_float(ints x) { return _mm256_cvtepi32_ps(x); }
    static void store_rounded(int16_t *to, reg x) {
        const ints rounded = _mm256_cvtps_epi32(x);
        const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(rounded), _mm256_extracti128_si256(rounded, 1));
        _mm_storeu_si128((__m128i *) (void *) to, halves);
    }
    // As instructions: given intrinsics, GCC multiplies ahead of the additions, runs out of registers and spills the
    // sums.
    static void add_products(ints &sum, ints a, ints b) {
        ints products;
        __asm__("vpmaddwd %3, %2, %1\n\tvpaddd %1, %0, %0" : "+x"(sum), "=&x"(products) : "x"(a), "x"(b));
    }

    static __m128i load_16(const int8_t *from) { return _mm_loadu_si128((const __m128i *) (const void *) from); }
    static void store_32(int32_t *to, ints x) { _mm256_storeu_si256((__m256i *) (void *) to, x); }

    static void pack_key_pairs(const int8_t *codes, int values, int32_t *tile) {
        const size_t row = (size_t) values;
        for (int key = 0; key < tile_keys; key += 8) {
            for (int i = 0; i < values; i += 16) {
                // rows[j], lane l: values i..i+15 of key 4l + j; a 4 x 4 transpose in each lane puts keys side by side.
                const int8_t *from = codes + (size_t) key * row + i;
                ints rows[4];
                for (int j = 0; j < 4; j++) {
                    rows[j] = _mm256_inserti128_si256(_mm256_castsi128_si256(load_16(from + j * row)),
                                                      load_16(from + (j + 4) * row), 1);
                }
                const ints a = _mm256_unpacklo_epi32(rows[0], rows[1]), b = _mm256_unpackhi_epi32(rows[0], rows[1]);
                const ints c = _mm256_unpacklo_epi32(rows[2], rows[3]), d = _mm256_unpackhi_epi32(rows[2], rows[3]);
                const ints fours[4] = {_mm256_unpacklo_epi64(a, c), _mm256_unpackhi_epi64(a, c),
                                       _mm256_unpacklo_epi64(b, d), _mm256_unpackhi_epi64(b, d)};
                int32_t *out = tile + (size_t) (i / 2) * tile_keys + key;
                for (int t = 0; t < 4; t++, out += 2 * tile_keys) {
                    store_32(out, _mm256_srai_epi16(_mm256_slli_epi16(fours[t], 8), 8));
                    store_32(out + tile_keys, _mm256_srai_epi16(fours[t], 8));
                }
            }
        }
    }

    static void pack_value_pairs(const int8_t *codes, int values, int32_t *tile) {
        for (int key = 0; key < tile_keys; key += 2, codes += 2 * values) {
            for (int i = 0; i < values; i += 16, tile += 16) {
                const __m128i a = load_16(codes + i), b = load_16(codes + values + i);
                store_32(tile, _mm256_cvtepi8_epi16(_mm_unpacklo_epi8(a, b)));
                store_32(tile + 8, _mm256_cvtepi8_epi16(_mm_unpackhi_epi8(a, b)));
            }
        }
    }
};

const engine avx2_floats = float_engine<vector8>();
const engine avx2_codes = int16_engine<vector8>();

} // namespace

const kernels avx2_kernels = {
    "avx2", vector8::panel, &avx2_floats, &avx2_codes, load_rows<vector8>, pack_keys<vector8>, softmax_panel<vector8>,
};

} // namespace turbo_fattn

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif // __x86_64__
