// CPU flash attention kernels for AVX2 with FMA and F16C. Compiles without -m flags: the target is set below, after all
// headers, and holds to the end of the file (where the templates are instantiated).

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#include "fattn_kernels.h"

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif

#include "fattn_generic.h"

namespace turbo_fattn {
namespace {

struct vector8 {
    typedef __m256 reg;
    static constexpr int width = 8;
    static constexpr int panel = 6; // 6 x 2 sums, 2 tile vectors and a broadcast: 15 of 16 registers
    static constexpr int score_vectors = 2;
    static constexpr int value_vectors = 2;

    static reg set1(float x) { return _mm256_set1_ps(x); }
    static reg zero() { return _mm256_setzero_ps(); }
    static reg load(const float *from) { return _mm256_loadu_ps(from); }
    static void store(float *to, reg r) { _mm256_storeu_ps(to, r); }
    static reg load_i8(const int8_t *from) {
        return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *) (const void *) from)));
    }
    static reg load_f16(const uint16_t *from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (const void *) from)); }
    static reg add(reg a, reg b) { return _mm256_add_ps(a, b); }
    static reg sub(reg a, reg b) { return _mm256_sub_ps(a, b); }
    static reg mul(reg a, reg b) { return _mm256_mul_ps(a, b); }
    static reg div(reg a, reg b) { return _mm256_div_ps(a, b); }
    static reg fma(reg a, reg b, reg c) { return _mm256_fmadd_ps(a, b, c); }
    static reg max(reg a, reg b) { return _mm256_max_ps(a, b); }
    static reg select_gt(reg a, reg b, reg x, reg y) { return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ)); }
    static reg round(reg x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
    static reg scale2(reg p, reg n) {
        const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
        return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
    }
    static float sum(reg x) {
        const __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
        const __m128 b = _mm_add_ps(a, _mm_movehl_ps(a, a));
        return _mm_cvtss_f32(_mm_add_ss(b, _mm_movehdup_ps(b)));
    }
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
};

const engine avx2_floats = float_engine<vector8>();

} // namespace

const kernels avx2_kernels = {
    "avx2", vector8::panel, &avx2_floats, &avx2_floats, load_rows<vector8>, pack_keys<vector8>, softmax_panel<vector8>,
};

} // namespace turbo_fattn

#if defined(__clang__)
#pragma clang attribute pop
#endif

#endif // __x86_64__
