// Inside the codecs: the codebooks as data, and the steps of encoding and decoding that have SIMD versions.
//
// Every version of a step computes the same integers, and the same floats in the same order of additions (`dot` alone
// may differ by rounding), so that all paths write the same blocks and read the same values.

#ifndef TURBO_CPU_KERNELS_H
#define TURBO_CPU_KERNELS_H

// The order of float operations is part of the contract: no fused multiply-add that the source does not ask for.
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#include "turbo/types.h"

#include "scale.h"

// Values are quantised to fractions (1 / substeps) of a codebook step before codes are chosen. That is fine enough for
// candidates of almost equal error to be told apart, and fits 16 bits: no value of a block of 128 exceeds 11.4 rms.
#define TURBO_SUBSTEP_MAX 32000 // |quantised value|, clamped
#define TURBO_MAX_STATES 64
#define TURBO_TRIES 3 // scales at which the trellis search looks for codes

// A codebook with what its codecs need. Windows are numbered w = oldest bits low, newest symbol high; the state before
// a step is w % states, the state after it w >> step_bits.
typedef struct turbo_book {
    const int8_t *entries; // scalar: one a code, ascending and antisymmetric; trellis: V a window
    float unit;            // rotated value = scale * unit * entry
    float unit_n[2];       // float32(unit / sqrt(n)) for n = 128, 64
    int entry_count;
    int bits;        // k: code bits a value
    int window;      // L, 0 = scalar
    int step;        // V
    int step_bits;   // k * V: bits of a symbol
    int states;      // trellis states, 0 = scalar
    int mantissa;    // mantissa bits of the stored scale
    int substeps;    // quantised value = substeps * (rotated value in codebook steps)
} turbo_book;

// Book of a type (never NULL for a descriptor of types.h).
const turbo_book *turbo_book_of(const turbo_type_desc *desc);

// Signs of n = 128 or 64 values, in three shapes: bit words (set = minus), float sign bits, and +1 or -1.
const uint32_t *turbo_sign_words(int n);
const uint32_t *turbo_sign_masks(int n);
const int16_t *turbo_sign_factors(int n);

// A block while it is being encoded.
typedef struct turbo_choice {
    uint16_t windows[TURBO_MAX_BLOCK]; // per step: scalar code, or trellis window
    int32_t num;                       // sum of quantised value * entry
    int32_t den;                       // sum of entry * entry
} turbo_choice;

typedef struct turbo_kernels {
    const char *name;

    // y = H(s * x) * post for one block of n values; y may be x.
    void (*rotate)(const float *x, float *y, int n, float post);
    // y = s * (H(x) * post); y may be x.
    void (*unrotate)(const float *x, float *y, int n, float post);
    // Sum of squares of n values: 16 running sums (value i into sum i % 16), then folded in halves.
    float (*sum_squares)(const float *y, int n);
    // Largest |x| as float bits: >= 0x7f800000 if any value is an infinity or a NaN.
    uint32_t (*max_bits)(const float *x, int n);
    // q = y * factor to the nearest integer (ties to even), clamped to +-TURBO_SUBSTEP_MAX.
    void (*quantise)(const float *y, int16_t *q, int n, float factor);
    // Scalar types: codes, num and den of the best gain (search.h).
    void (*choose_scalar)(const turbo_book *book, const int16_t *q, int n, turbo_choice *choice);
    // Trellis types: windows, num and den of the path of least squared error (least-numbered on ties) of each of
    // TURBO_TRIES quantised versions of one block; together, because the steps of one path wait for each other.
    void (*choose_trellis)(const turbo_book *book, const int16_t (*q)[TURBO_MAX_BLOCK], int n, turbo_choice *choices);
    // codes[b * n + i] = entry of rotated value i of block b, for `count` blocks that lie `stride` bytes apart.
    void (*unpack)(const turbo_book *book, const uint8_t *blocks, size_t stride, int64_t count, int n, int8_t *codes);
    // y = (s * H(codes)) * factor: integers up to one multiply a value.
    void (*unrotate_codes)(const int8_t *codes, float *y, int n, float factor);
    // sum of codes[i] * y[i]
    float (*dot)(const int8_t *codes, const float *y, int n);
} turbo_kernels;

extern const turbo_kernels turbo_kernels_portable;
#if defined(__x86_64__)
#define TURBO_HAVE_X86 1
#endif

// The path in use.
const turbo_kernels *turbo_active_kernels(void);

// Encode one block with a given path.
void turbo_encode_block(const turbo_kernels *kernels, const turbo_book *book, const float *x, uint8_t *block, int n);

#endif // TURBO_CPU_KERNELS_H
