// AVX-512: rotation in floats, un-rotation in integers, and the small sums around them. A block stays in registers.

#include "simd.h"

#ifdef TURBO_HAVE_X86

#define MAX_REGISTERS (TURBO_MAX_BLOCK / 16)

// partner + value, or partner - value in the lanes of `second`.
#define BUTTERFLY_PS(v, partner, second) _mm512_mask_sub_ps(_mm512_add_ps(partner, v), second, partner, v)
#define BUTTERFLY_16(v, partner, second) _mm512_mask_sub_epi16(_mm512_add_epi16(partner, v), second, partner, v)

// The four butterfly stages inside a register.
TURBO_AVX512 INLINE __m512 inner_stages(__m512 v) {
    v = BUTTERFLY_PS(v, _mm512_permute_ps(v, 0xb1), 0xaaaa);
    v = BUTTERFLY_PS(v, _mm512_permute_ps(v, 0x4e), 0xcccc);
    v = BUTTERFLY_PS(v, _mm512_shuffle_f32x4(v, v, 0xb1), 0xf0f0);
    return BUTTERFLY_PS(v, _mm512_shuffle_f32x4(v, v, 0x4e), 0xff00);
}

// H of n values in n / 16 registers.
TURBO_AVX512 INLINE void hadamard(__m512 *v, const int n) {
#pragma GCC unroll 8
    for (int i = 0; i < n / 16; i++) {
        v[i] = inner_stages(v[i]);
    }
#pragma GCC unroll 3
    for (int h = 1; h < n / 16; h *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < n / 16; i++) {
            if ((i & h) == 0) {
                const __m512 a = v[i];
                v[i] = _mm512_add_ps(a, v[i + h]);
                v[i + h] = _mm512_sub_ps(a, v[i + h]);
            }
        }
    }
}

TURBO_AVX512 INLINE void rotate(const float *x, float *y, const int n, float post) {
    const float *signs = (const float *) (const void *) turbo_sign_masks(n);
    __m512 v[MAX_REGISTERS];
#pragma GCC unroll 8
    for (int i = 0; i < n / 16; i++) {
        v[i] = _mm512_xor_ps(_mm512_loadu_ps(x + 16 * i), _mm512_loadu_ps(signs + 16 * i));
    }
    hadamard(v, n);
#pragma GCC unroll 8
    for (int i = 0; i < n / 16; i++) {
        _mm512_storeu_ps(y + 16 * i, _mm512_mul_ps(v[i], _mm512_set1_ps(post)));
    }
}

TURBO_AVX512 INLINE void unrotate(const float *x, float *y, const int n, float post) {
    const float *signs = (const float *) (const void *) turbo_sign_masks(n);
    __m512 v[MAX_REGISTERS];
#pragma GCC unroll 8
    for (int i = 0; i < n / 16; i++) {
        v[i] = _mm512_loadu_ps(x + 16 * i);
    }
    hadamard(v, n);
#pragma GCC unroll 8
    for (int i = 0; i < n / 16; i++) {
        const __m512 scaled = _mm512_mul_ps(v[i], _mm512_set1_ps(post));
        _mm512_storeu_ps(y + 16 * i, _mm512_xor_ps(scaled, _mm512_loadu_ps(signs + 16 * i)));
    }
}

TURBO_AVX512 void turbo_avx512_rotate(const float *x, float *y, int n, float post) {
    if (n == 128) {
        rotate(x, y, 128, post);
    } else {
        rotate(x, y, 64, post);
    }
}

TURBO_AVX512 void turbo_avx512_unrotate(const float *x, float *y, int n, float post) {
    if (n == 128) {
        unrotate(x, y, 128, post);
    } else {
        unrotate(x, y, 64, post);
    }
}

TURBO_AVX512 INLINE float fold(__m512 sums) {
    const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(sums), _mm512_extractf32x8_ps(sums, 1));
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

TURBO_AVX512 float turbo_avx512_sum_squares(const float *y, int n) {
    __m512 sums = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) {
        const __m512 v = _mm512_loadu_ps(y + i);
        sums = _mm512_add_ps(sums, _mm512_mul_ps(v, v));
    }
    return fold(sums);
}

TURBO_AVX512 uint32_t turbo_avx512_max_bits(const float *x, int n) {
    __m512i largest = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 16) {
        const __m512i bits = _mm512_loadu_si512(x + i);
        largest = _mm512_max_epu32(largest, _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)));
    }
    return _mm512_reduce_max_epu32(largest);
}

TURBO_AVX512 void turbo_avx512_quantise(const float *y, int16_t *q, int n, float factor) {
    const __m512 limit = _mm512_set1_ps((float) TURBO_SUBSTEP_MAX);
    const __m512 minus_limit = _mm512_set1_ps(-(float) TURBO_SUBSTEP_MAX);
    for (int i = 0; i < n; i += 16) {
        const __m512 value = _mm512_mul_ps(_mm512_loadu_ps(y + i), _mm512_set1_ps(factor));
        const __m512i nearest = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(value, limit), minus_limit));
        _mm256_storeu_si256((__m256i *) (void *) (q + i), _mm512_cvtepi32_epi16(nearest));
    }
}

// The five butterfly stages inside a register of 16-bit integers.
TURBO_AVX512 INLINE __m512i inner_stages_16(__m512i v) {
    const __m512i rotated = _mm512_or_si512(_mm512_slli_epi32(v, 16), _mm512_srli_epi32(v, 16));
    v = BUTTERFLY_16(v, rotated, 0xaaaaaaaau);
    v = BUTTERFLY_16(v, _mm512_shuffle_epi32(v, 0xb1), 0xccccccccu);
    v = BUTTERFLY_16(v, _mm512_shuffle_epi32(v, 0x4e), 0xf0f0f0f0u);
    v = BUTTERFLY_16(v, _mm512_shuffle_i32x4(v, v, 0xb1), 0xff00ff00u);
    return BUTTERFLY_16(v, _mm512_shuffle_i32x4(v, v, 0x4e), 0xffff0000u);
}

TURBO_AVX512 INLINE void store_scaled(__m256i z, float *y, float factor) {
    _mm512_storeu_ps(y, _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(z)), _mm512_set1_ps(factor)));
}

TURBO_AVX512 INLINE void unrotate_codes(const int8_t *codes, float *y, const int n, float factor) {
    const uint32_t *signs = turbo_sign_words(n);
    __m512i z[TURBO_MAX_BLOCK / 32];
#pragma GCC unroll 4
    for (int i = 0; i < n / 32; i++) {
        const __m256i bytes = _mm256_loadu_si256((const __m256i *) (const void *) (codes + 32 * i));
        z[i] = inner_stages_16(_mm512_cvtepi8_epi16(bytes));
    }
#pragma GCC unroll 2
    for (int h = 1; h < n / 32; h *= 2) {
#pragma GCC unroll 4
        for (int i = 0; i < n / 32; i++) {
            if ((i & h) == 0) {
                const __m512i a = z[i];
                z[i] = _mm512_add_epi16(a, z[i + h]);
                z[i + h] = _mm512_sub_epi16(a, z[i + h]);
            }
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < n / 32; i++) {
        const __m512i signed_z = _mm512_mask_sub_epi16(z[i], signs[i], _mm512_setzero_si512(), z[i]);
        store_scaled(_mm512_castsi512_si256(signed_z), y + 32 * i, factor);
        store_scaled(_mm512_extracti64x4_epi64(signed_z, 1), y + 32 * i + 16, factor);
    }
}

TURBO_AVX512 void turbo_avx512_unrotate_codes(const int8_t *codes, float *y, int n, float factor) {
    if (n == 128) {
        unrotate_codes(codes, y, 128, factor);
    } else {
        unrotate_codes(codes, y, 64, factor);
    }
}

TURBO_AVX512 float turbo_avx512_dot(const int8_t *codes, const float *y, int n) {
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int i = 0; i < n; i += 32) {
        for (int j = 0; j < 2; j++) {
            const __m128i bytes = _mm_loadu_si128((const __m128i *) (const void *) (codes + i + 16 * j));
            const __m512 entries = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
            sums[j] = _mm512_fmadd_ps(entries, _mm512_loadu_ps(y + i + 16 * j), sums[j]);
        }
    }
    return fold(_mm512_add_ps(sums[0], sums[1]));
}

#endif // TURBO_HAVE_X86
