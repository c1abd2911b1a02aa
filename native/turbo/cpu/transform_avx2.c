// AVX2: rotation in floats, un-rotation in integers, and the small sums around them.

#include "simd.h"

#ifdef TURBO_HAVE_X86

// The three butterfly stages inside a register: partner + value, or partner - value at the second of a pair.
TURBO_AVX2 INLINE __m256 inner_stages(__m256 v) {
    const __m256 minus_1 = _mm256_setr_ps(0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f, 0.0f, -0.0f);
    const __m256 minus_2 = _mm256_setr_ps(0.0f, 0.0f, -0.0f, -0.0f, 0.0f, 0.0f, -0.0f, -0.0f);
    const __m256 minus_4 = _mm256_setr_ps(0.0f, 0.0f, 0.0f, 0.0f, -0.0f, -0.0f, -0.0f, -0.0f);
    v = _mm256_add_ps(_mm256_permute_ps(v, 0xb1), _mm256_xor_ps(v, minus_1));
    v = _mm256_add_ps(_mm256_permute_ps(v, 0x4e), _mm256_xor_ps(v, minus_2));
    return _mm256_add_ps(_mm256_permute2f128_ps(v, v, 0x01), _mm256_xor_ps(v, minus_4));
}

// Two stages between registers: h = stride and 2 * stride.
TURBO_AVX2 INLINE void outer_stages(float *y, int n, int stride) {
    for (int i = 0; i < n; i += 4 * stride) {
        for (int j = i; j < i + stride; j += 8) {
            const __m256 a = _mm256_loadu_ps(y + j);
            const __m256 b = _mm256_loadu_ps(y + j + stride);
            const __m256 c = _mm256_loadu_ps(y + j + 2 * stride);
            const __m256 d = _mm256_loadu_ps(y + j + 3 * stride);
            const __m256 ab = _mm256_add_ps(a, b);
            const __m256 a_b = _mm256_sub_ps(a, b);
            const __m256 cd = _mm256_add_ps(c, d);
            const __m256 c_d = _mm256_sub_ps(c, d);
            _mm256_storeu_ps(y + j, _mm256_add_ps(ab, cd));
            _mm256_storeu_ps(y + j + stride, _mm256_add_ps(a_b, c_d));
            _mm256_storeu_ps(y + j + 2 * stride, _mm256_sub_ps(ab, cd));
            _mm256_storeu_ps(y + j + 3 * stride, _mm256_sub_ps(a_b, c_d));
        }
    }
}

// The stages h = 8 and up, on values whose inner stages are done.
TURBO_AVX2 INLINE void finish_hadamard(float *y, int n) {
    outer_stages(y, n, 8);
    if (n == 128) {
        outer_stages(y, n, 32);
        return;
    }
    for (int j = 0; j < 32; j += 8) {
        const __m256 a = _mm256_loadu_ps(y + j);
        const __m256 b = _mm256_loadu_ps(y + j + 32);
        _mm256_storeu_ps(y + j, _mm256_add_ps(a, b));
        _mm256_storeu_ps(y + j + 32, _mm256_sub_ps(a, b));
    }
}

TURBO_AVX2 void turbo_avx2_rotate(const float *x, float *y, int n, float post) {
    const float *signs = (const float *) (const void *) turbo_sign_masks(n);
    for (int i = 0; i < n; i += 8) {
        _mm256_storeu_ps(y + i, inner_stages(_mm256_xor_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(signs + i))));
    }
    finish_hadamard(y, n);
    if (post != 1.0f) {
        for (int i = 0; i < n; i += 8) {
            _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_loadu_ps(y + i), _mm256_set1_ps(post)));
        }
    }
}

TURBO_AVX2 void turbo_avx2_unrotate(const float *x, float *y, int n, float post) {
    const float *signs = (const float *) (const void *) turbo_sign_masks(n);
    for (int i = 0; i < n; i += 8) {
        _mm256_storeu_ps(y + i, inner_stages(_mm256_loadu_ps(x + i)));
    }
    finish_hadamard(y, n);
    for (int i = 0; i < n; i += 8) {
        const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(y + i), _mm256_set1_ps(post));
        _mm256_storeu_ps(y + i, _mm256_xor_ps(scaled, _mm256_loadu_ps(signs + i)));
    }
}

TURBO_AVX2 float turbo_avx2_sum_squares(const float *y, int n) {
    __m256 low = _mm256_setzero_ps();
    __m256 high = _mm256_setzero_ps();
    for (int i = 0; i < n; i += 16) {
        const __m256 a = _mm256_loadu_ps(y + i);
        const __m256 b = _mm256_loadu_ps(y + i + 8);
        low = _mm256_add_ps(low, _mm256_mul_ps(a, a));
        high = _mm256_add_ps(high, _mm256_mul_ps(b, b));
    }
    const __m256 eight = _mm256_add_ps(low, high);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

TURBO_AVX2 uint32_t turbo_avx2_max_bits(const float *x, int n) {
    __m256i largest = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8) {
        const __m256i bits = _mm256_loadu_si256((const __m256i *) (const void *) (x + i));
        largest = _mm256_max_epu32(largest, _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff)));
    }
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return (uint32_t) _mm_cvtsi128_si32(m);
}

TURBO_AVX2 INLINE __m256i nearest(const float *y, __m256 factor) {
    const __m256 limit = _mm256_set1_ps((float) TURBO_SUBSTEP_MAX);
    const __m256 value = _mm256_mul_ps(_mm256_loadu_ps(y), factor);
    return _mm256_cvtps_epi32(_mm256_max_ps(_mm256_min_ps(value, limit), _mm256_sub_ps(_mm256_setzero_ps(), limit)));
}

TURBO_AVX2 void turbo_avx2_quantise(const float *y, int16_t *q, int n, float factor) {
    const __m256 f = _mm256_set1_ps(factor);
    for (int i = 0; i < n; i += 16) {
        const __m256i packed = _mm256_packs_epi32(nearest(y + i, f), nearest(y + i + 8, f));
        _mm256_storeu_si256((__m256i *) (void *) (q + i), _mm256_permute4x64_epi64(packed, 0xd8));
    }
}

// The four butterfly stages inside a register of 16-bit integers.
TURBO_AVX2 INLINE __m256i inner_stages_16(__m256i v) {
    const __m256i swap = _mm256_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13,
                                          2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
    const __m256i sign_1 = _mm256_set1_epi32((int) 0xffff0001);
    const __m256i sign_2 = _mm256_set1_epi64x((int64_t) 0xffffffff00010001);
    const __m256i sign_4 = _mm256_setr_epi16(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1);
    const __m256i sign_8 = _mm256_setr_epi16(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
    v = _mm256_add_epi16(_mm256_shuffle_epi8(v, swap), _mm256_sign_epi16(v, sign_1));
    v = _mm256_add_epi16(_mm256_shuffle_epi32(v, 0xb1), _mm256_sign_epi16(v, sign_2));
    v = _mm256_add_epi16(_mm256_shuffle_epi32(v, 0x4e), _mm256_sign_epi16(v, sign_4));
    return _mm256_add_epi16(_mm256_permute4x64_epi64(v, 0x4e), _mm256_sign_epi16(v, sign_8));
}

TURBO_AVX2 INLINE void store_scaled(__m128i z, float *y, float factor) {
    _mm256_storeu_ps(y, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(z)), _mm256_set1_ps(factor)));
}

TURBO_AVX2 INLINE void unrotate_codes(const int8_t *codes, float *y,
                                      const int n, float factor) {
    const int16_t *signs = turbo_sign_factors(n);
    __m256i z[8];
#pragma GCC unroll 8
    for (int i = 0; i < n / 16; i++) {
        const __m128i bytes = _mm_loadu_si128((const __m128i *) (const void *) (codes + 16 * i));
        z[i] = inner_stages_16(_mm256_cvtepi8_epi16(bytes));
    }
#pragma GCC unroll 3
    for (int h = 1; h < n / 16; h *= 2) {
#pragma GCC unroll 8
        for (int i = 0; i < n / 16; i++) {
            if ((i & h) == 0) {
                const __m256i a = z[i];
                z[i] = _mm256_add_epi16(a, z[i + h]);
                z[i + h] = _mm256_sub_epi16(a, z[i + h]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < n / 16; i++) {
        const __m256i sign = _mm256_loadu_si256((const __m256i *) (const void *) (signs + 16 * i));
        const __m256i signed_z = _mm256_sign_epi16(z[i], sign);
        store_scaled(_mm256_castsi256_si128(signed_z), y + 16 * i, factor);
        store_scaled(_mm256_extracti128_si256(signed_z, 1), y + 16 * i + 8, factor);
    }
}

TURBO_AVX2 void turbo_avx2_unrotate_codes(const int8_t *codes, float *y, int n, float factor) {
    if (n == 128) {
        unrotate_codes(codes, y, 128, factor);
    } else {
        unrotate_codes(codes, y, 64, factor);
    }
}

TURBO_AVX2 float turbo_avx2_dot(const int8_t *codes, const float *y, int n) {
    __m256 sums[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int i = 0; i < n; i += 16) {
        for (int j = 0; j < 2; j++) {
            const __m128i bytes = _mm_loadl_epi64((const __m128i *) (const void *) (codes + i + 8 * j));
            const __m256 entries = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
            sums[j] = _mm256_fmadd_ps(entries, _mm256_loadu_ps(y + i + 8 * j), sums[j]);
        }
    }
    const __m256 eight = _mm256_add_ps(sums[0], sums[1]);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

#endif // TURBO_HAVE_X86
