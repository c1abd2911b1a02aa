// The x86 steps, from which dispatch.c puts paths together. Each function runs only after its features were found.

#ifndef TURBO_CPU_SIMD_H
#define TURBO_CPU_SIMD_H

#include "kernels.h"
#include "search.h"

#ifdef TURBO_HAVE_X86

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))
#define TURBO_AVX2 __attribute__((target("avx2,fma")))
#define TURBO_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")))
#define TURBO_AVX512_VNNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")))
#define TURBO_AVX512_VBMI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx2,fma")))

// transform_avx2.c, transform_avx512.c
void turbo_avx2_rotate(const float *x, float *y, int n, float post);
void turbo_avx2_unrotate(const float *x, float *y, int n, float post);
float turbo_avx2_sum_squares(const float *y, int n);
uint32_t turbo_avx2_max_bits(const float *x, int n);
void turbo_avx2_quantise(const float *y, int16_t *q, int n, float factor);
void turbo_avx2_unrotate_codes(const int8_t *codes, float *y, int n, float factor);
float turbo_avx2_dot(const int8_t *codes, const float *y, int n);

void turbo_avx512_rotate(const float *x, float *y, int n, float post);
void turbo_avx512_unrotate(const float *x, float *y, int n, float post);
float turbo_avx512_sum_squares(const float *y, int n);
uint32_t turbo_avx512_max_bits(const float *x, int n);
void turbo_avx512_quantise(const float *y, int16_t *q, int n, float factor);
void turbo_avx512_unrotate_codes(const int8_t *codes, float *y, int n, float factor);
float turbo_avx512_dot(const int8_t *codes, const float *y, int n);

// search_avx2.c, search_avx512.c (the trellis of the latter needs VNNI)
void turbo_avx2_choose_scalar(const turbo_book *book, const int16_t *q, int n, turbo_choice *choice);
void turbo_avx2_choose_trellis(const turbo_book *book, const int16_t (*q)[TURBO_MAX_BLOCK], int n,
                               turbo_choice *choices);
void turbo_avx512_choose_scalar(const turbo_book *book, const int16_t *q, int n, turbo_choice *choice);
void turbo_avx512_choose_trellis(const turbo_book *book, const int16_t (*q)[TURBO_MAX_BLOCK], int n,
                                 turbo_choice *choices);

// unpack_avx2.c, unpack_avx512.c (the latter needs VBMI)
void turbo_avx2_unpack(const turbo_book *book, const uint8_t *blocks, size_t stride, int64_t count, int n,
                       int8_t *codes);
void turbo_avx512_unpack(const turbo_book *book, const uint8_t *blocks, size_t stride, int64_t count, int n,
                         int8_t *codes);

#endif // TURBO_HAVE_X86
#endif // TURBO_CPU_SIMD_H
