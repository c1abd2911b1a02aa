// CPU flash attention kernels for AVX-512 (F, BW, DQ, VL, VNNI): float32 for float types, int16 for codes. Compiles
// without -m flags: the target is set below, after all headers, and holds to the end of the file.

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "fattn_kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni"))),                 \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
#endif

// GCC 12 takes the undefined pass-through operands inside its own AVX-512 intrinsics for uninitialised variables.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "fattn_int16.h"

namespace turbo_fattn {
namespace {

struct vector16 {
    typedef __m512 reg;
    static constexpr int width = 16;
    static constexpr int panel = 6; // 6 x 4 sums, 4 tile vectors and broadcasts: 29 of 32 registers
    static constexpr int score_vectors = 4;
    static constexpr int value_vectors = 4;

    static reg set1(float x) { return _mm512_set1_ps(x); }
    static reg zero() { return _mm512_setzero_ps(); }
    static reg load(const float *from) { return _mm512_loadu_ps(from); }
    static void store(float *to, reg r) { _mm512_storeu_ps(to, r); }
    static reg load_i8(const int8_t *from) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *) (const void *) from)));
    }
    static reg load_nibbles(const uint8_t *from, int shift) {
        const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *) (const void *) from));
        return _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(bytes, (unsigned) shift), _mm512_set1_epi32(15)));
    }
    static reg load_f16(const uint16_t *from) {
        return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *) (const void *) from));
    }
    static reg add(reg a, reg b) { return _mm512_add_ps(a, b); }
    static reg sub(reg a, reg b) { return _mm512_sub_ps(a, b); }
    static reg mul(reg a, reg b) { return _mm512_mul_ps(a, b); }
    static reg div(reg a, reg b) { return _mm512_div_ps(a, b); }
    static reg fma(reg a, reg b, reg c) { return _mm512_fmadd_ps(a, b, c); }
    static reg fms(reg a, reg b, reg c) { return _mm512_fmsub_ps(a, b, c); }
    static reg max(reg a, reg b) { return _mm512_max_ps(a, b); }
    static reg select_gt(reg a, reg b, reg x, reg y) {
        return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), y, x);
    }
    static reg round(reg x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static reg scale2(reg p, reg n) { return _mm512_scalef_ps(p, n); }
    static bool any_gt(reg a, reg b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
    static bool any_nan(reg a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q) != 0; }
    static float top(reg x) { return _mm512_reduce_max_ps(x); }
    static void transpose(reg (&m)[16]) {
        reg pair[16], quad[16];
        for (int i = 0; i < 16; i += 2) {
            pair[i] = _mm512_unpacklo_ps(m[i], m[i + 1]);
            pair[i + 1] = _mm512_unpackhi_ps(m[i], m[i + 1]);
        }
        // quad[i + j], i a multiple of 4: lane l holds value 4l + j of rows i..i+3
        for (int i = 0; i < 16; i += 4) {
            quad[i] = _mm512_shuffle_ps(pair[i], pair[i + 2], 0x44);
            quad[i + 1] = _mm512_shuffle_ps(pair[i], pair[i + 2], 0xee);
            quad[i + 2] = _mm512_shuffle_ps(pair[i + 1], pair[i + 3], 0x44);
            quad[i + 3] = _mm512_shuffle_ps(pair[i + 1], pair[i + 3], 0xee);
        }
        for (int j = 0; j < 4; j++) {
            const reg even_low = _mm512_shuffle_f32x4(quad[j], quad[j + 4], 0x88);
            const reg odd_low = _mm512_shuffle_f32x4(quad[j], quad[j + 4], 0xdd);
            const reg even_high = _mm512_shuffle_f32x4(quad[j + 8], quad[j + 12], 0x88);
            const reg odd_high = _mm512_shuffle_f32x4(quad[j + 8], quad[j + 12], 0xdd);
            m[j] = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
            m[j + 8] = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
            m[j + 4] = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
            m[j + 12] = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
        }
    }

    // ---- pairs of int16 ----

    typedef __m512i ints;

    static ints int_zero() { return _mm512_setzero_si512(); }
    static ints int_load(const int32_t *from) { return _mm512_loadu_si512(from); }
    static ints int_set1(int32_t x) { return _mm512_set1_epi32(x); }
    static reg to_float(ints x) { return _mm512_cvtepi32_ps(x); }
    static void store_rounded(int16_t *to, reg x) {
        _mm256_storeu_si256((__m256i *) (void *) to, _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(x)));
    }
    // As an instruction: GCC 12 copies and spills the sums of a register tile around the intrinsic, at half the speed.
    static void add_products(ints &sum, ints a, ints b) { __asm__("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b)); }

    static ints load_quarters(const int8_t *row, size_t stride) {
        const ints first = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *) (const void *) row));
        const ints two = _mm512_mask_broadcast_i32x4(first, 0x00f0,
                                                     _mm_loadu_si128((const __m128i *) (const void *) (row + stride)));
        const ints three = _mm512_mask_broadcast_i32x4(
            two, 0x0f00, _mm_loadu_si128((const __m128i *) (const void *) (row + 2 * stride)));
        return _mm512_mask_broadcast_i32x4(three, 0xf000,
                                           _mm_loadu_si128((const __m128i *) (const void *) (row + 3 * stride)));
    }

    static void pack_key_pairs(const int8_t *codes, int values, int32_t *tile) {
        const size_t row = (size_t) values;
        for (int key = 0; key < tile_keys; key += 16) {
            for (int i = 0; i < values; i += 16) {
                // rows[j], lane l: values i..i+15 of key 4l + j; a 4 x 4 transpose in each lane puts keys side by side.
                const int8_t *from = codes + (size_t) key * row + i;
                ints rows[4];
                for (int j = 0; j < 4; j++) {
                    rows[j] = load_quarters(from + j * row, 4 * row);
                }
                const ints a = _mm512_unpacklo_epi32(rows[0], rows[1]), b = _mm512_unpackhi_epi32(rows[0], rows[1]);
                const ints c = _mm512_unpacklo_epi32(rows[2], rows[3]), d = _mm512_unpackhi_epi32(rows[2], rows[3]);
                const ints fours[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c),
                                       _mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d)};
                int32_t *out = tile + (size_t) (i / 2) * tile_keys + key;
                for (int t = 0; t < 4; t++, out += 2 * tile_keys) {
                    _mm512_storeu_si512(out, _mm512_srai_epi16(_mm512_slli_epi16(fours[t], 8), 8));
                    _mm512_storeu_si512(out + tile_keys, _mm512_srai_epi16(fours[t], 8));
                }
            }
        }
    }

    static void pack_value_pairs(const int8_t *codes, int values, int32_t *tile) {
        const ints low = _mm512_set_epi16(47, 15, 46, 14, 45, 13, 44, 12, 43, 11, 42, 10, 41, 9, 40, 8, 39, 7, 38, 6,
                                          37, 5, 36, 4, 35, 3, 34, 2, 33, 1, 32, 0);
        const ints high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
        for (int key = 0; key < tile_keys; key += 2, codes += 2 * values) {
            for (int i = 0; i < values; i += 32, tile += 32) {
                const ints a = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *) (const void *) (codes + i)));
                const ints b = _mm512_cvtepi8_epi16(
                    _mm256_loadu_si256((const __m256i *) (const void *) (codes + values + i)));
                _mm512_storeu_si512(tile, _mm512_permutex2var_epi16(a, low, b));
                _mm512_storeu_si512(tile + 16, _mm512_permutex2var_epi16(a, high, b));
            }
        }
    }
};

const engine avx512_floats = float_engine<vector16>();
const engine avx512_codes = int16_engine<vector16>();

} // namespace

const kernels avx512_kernels = {
    "avx512",
    vector16::panel,
    &avx512_floats,
    &avx512_codes,
    load_rows<vector16>,
    pack_keys<vector16>,
    softmax_panel<vector16>,
};

} // namespace turbo_fattn

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif // __x86_64__
