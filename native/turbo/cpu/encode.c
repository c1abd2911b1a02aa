// Encoding one block: rotate, choose a scale, choose codes for it, refit the scale, pack.

#include <math.h>

#include "kernels.h"

#define NON_FINITE_BITS 0x7f800000u

// Inputs from 2^24 on are scaled down before the transform, which must not overflow; their scale saturates anyway.
#define HUGE_EXPONENT 24
#define HUGE_BITS ((uint32_t) (127 + HUGE_EXPONENT) << 23)

// A quarter of the smallest f16: below it no scale can be stored.
#define SMALLEST_RMS 0x1p-26f

// Distance of the trellis search's scales, in units of the last stored bit.
#define TRELLIS_SPREAD 3

static void put_word(uint8_t *out, uint32_t word) {
    for (int i = 0; i < 4; i++) {
        out[i] = (uint8_t) (word >> 8 * i);
    }
}

// Eight codes below 16 to the nibbles of a word (on a little-endian machine).
static uint32_t nibbles(const uint16_t *codes) {
    uint64_t pair[2];
    memcpy(pair, codes, sizeof pair);
    for (int i = 0; i < 2; i++) {
        pair[i] |= pair[i] >> 12;
        pair[i] = (pair[i] & 0xff) | (pair[i] >> 24 & 0xff00);
    }
    return (uint32_t) (pair[0] | pair[1] << 16);
}

// Scalar codes: groups of 32 codes in k words, interleaved by nibbles (docs/formats.md).
static void pack_scalar(const turbo_choice *choice, uint8_t *block, int n, int k, uint32_t scale) {
    block[0] = (uint8_t) scale;
    block[1] = (uint8_t) (scale >> 8);
    block += TURBO_HEADER_BITS / 8;
    for (int g = 0; g < n / 32; g++) {
        const uint16_t *c = choice->windows + 32 * g;
        const uint32_t last = nibbles(c + 24);
        for (int p = 0; p < k; p++, block += 4) {
            uint32_t word = nibbles(c + 8 * p);
            if (k == 2) {
                word |= nibbles(c + 16 + 8 * p) << 2;
            } else if (k == 3) {
                word |= (last >> p & 0x11111111u) << 3;
            }
            put_word(block, word);
        }
    }
}

// Trellis codes: one stream, least significant bit first: scale, start state, symbols.
static void pack_trellis(const turbo_book *book, const turbo_choice *choice, uint8_t *block, int n, uint32_t scale) {
    const int state_bits = book->window - book->step_bits;
    const uint32_t start = choice->windows[0] & (uint32_t) (book->states - 1);
    uint64_t pending = scale | (uint64_t) start << (TURBO_HEADER_BITS - state_bits);
    int held = TURBO_HEADER_BITS;
    uint8_t *out = block;
    for (int i = 0; i < n / book->step; i++) {
        pending |= (uint64_t) (choice->windows[i] >> state_bits) << held;
        held += book->step_bits;
        if (held >= 32) {
            put_word(out, (uint32_t) pending);
            out += 4;
            pending >>= 32;
            held -= 32;
        }
    }
    for (; held > 0; held -= 8) {
        *out++ = (uint8_t) pending;
        pending >>= 8;
    }
}

static void pack(const turbo_book *book, const turbo_choice *choice, uint8_t *block, int n, uint32_t scale) {
    if (book->states == 0) {
        pack_scalar(choice, block, n, book->bits, scale);
    } else {
        pack_trellis(book, choice, block, n, scale);
    }
}

// A block without codes: zero, or not a number.
static void pack_scale_only(const turbo_book *book, uint8_t *block, int n, uint32_t scale) {
    memset(block, 0, (size_t) TURBO_BLOCK_BYTES(book->bits, n));
    block[0] = (uint8_t) scale;
    block[1] = (uint8_t) (scale >> 8);
}

// A scale and its codes, while candidates are compared.
typedef struct candidate {
    uint32_t field;  // of the fitted scale; 0 = nothing worth storing
    float explained; // energy of the block that it would explain as stored, in squared codebook steps
} candidate;

// Fit the scale by least squares to codes chosen at `scale`, round it as it is stored, and judge the result.
static candidate fit(const turbo_book *book, const turbo_choice *choice, float scale) {
    candidate result = {0, 0.0f};
    if (choice->num > 0) {
        const float num = scale * (float) choice->num / (float) book->substeps;
        const float den = (float) choice->den;
        result.field = turbo_scale_encode(num / den, book->mantissa);
        const float stored = turbo_scale_decode(result.field, book->mantissa);
        result.explained = stored * (2.0f * num - stored * den);
    }
    return result;
}

// Scalar types: the scale has enough bits to be fitted after the codes; the search over gains is in the kernel.
static uint32_t search_scalar(const turbo_kernels *kernels, const turbo_book *book, const float *y, int n, float rms,
                              turbo_choice *choice) {
    int16_t q[TURBO_MAX_BLOCK];
    kernels->quantise(y, q, n, (float) book->substeps / (rms * book->unit_n[n == 64] * (float) n));
    kernels->choose_scalar(book, q, n, choice);
    return fit(book, choice, rms).field;
}

// Trellis types: the stored scale is coarse, so codes are chosen for scales that can be stored, three of them (at the
// ends of the range a scale that is not there is replaced by its neighbour, which decides nothing).
static uint32_t search_trellis(const turbo_kernels *kernels, const turbo_book *book, const float *y, int n, float rms,
                               turbo_choice *choice) {
    const int largest = (int) turbo_scale_max(book->mantissa);
    const int centre = (int) turbo_scale_encode(rms, book->mantissa);
    float scales[TURBO_TRIES];
    int16_t q[TURBO_TRIES][TURBO_MAX_BLOCK];
    turbo_choice tried[TURBO_TRIES];
    for (int t = 0; t < TURBO_TRIES; t++) {
        int field = centre + (t - TURBO_TRIES / 2) * TRELLIS_SPREAD;
        while (field <= 0) {
            field += TRELLIS_SPREAD;
        }
        field -= field > largest ? TRELLIS_SPREAD : 0;
        scales[t] = turbo_scale_decode((uint32_t) field, book->mantissa);
        kernels->quantise(y, q[t], n, (float) book->substeps / (scales[t] * book->unit_n[n == 64] * (float) n));
    }
    kernels->choose_trellis(book, (const int16_t (*)[TURBO_MAX_BLOCK]) q, n, tried);
    candidate best = {0, 0.0f};
    for (int t = 0; t < TURBO_TRIES; t++) {
        const candidate found = fit(book, &tried[t], scales[t]);
        if (found.explained > best.explained) {
            best = found;
            *choice = tried[t];
        }
    }
    return best.field;
}

void turbo_encode_block(const turbo_kernels *kernels, const turbo_book *book, const float *x, uint8_t *block, int n) {
    float y[TURBO_MAX_BLOCK];
    turbo_choice choice;

    const uint32_t peak = kernels->max_bits(x, n);
    if (peak >= NON_FINITE_BITS) {
        pack_scale_only(book, block, n, turbo_scale_nan(book->mantissa));
        return;
    }
    const int huge = peak >= HUGE_BITS;
    if (huge) {
        const float shrink = turbo_float_from_bits((uint32_t) (127 + HUGE_EXPONENT + 127 - (int) (peak >> 23)) << 23);
        for (int i = 0; i < n; i++) {
            y[i] = x[i] * shrink;
        }
        x = y;
    }

    // y = sqrt(n) times the rotated block, so its rms over sqrt(n) is the block's rms
    kernels->rotate(x, y, n, 1.0f);
    float rms = sqrtf(kernels->sum_squares(y, n)) * (1.0f / (float) n);
    const uint32_t largest = turbo_scale_max(book->mantissa);
    const int saturated = huge || rms > turbo_scale_decode(largest, book->mantissa);
    if (saturated) { // keep the direction: codes for a scale of 1
        const float inverse = 1.0f / rms;
        for (int i = 0; i < n; i++) {
            y[i] *= inverse;
        }
        rms = 1.0f;
    }
    uint32_t field = 0;
    if (rms >= SMALLEST_RMS) {
        field = (book->states == 0 ? search_scalar : search_trellis)(kernels, book, y, n, rms, &choice);
    }
    if (field == 0) {
        pack_scale_only(book, block, n, 0);
    } else {
        pack(book, &choice, block, n, saturated ? largest : field);
    }
}
