// Codebooks and signs as data, and what is derived from the signs when the library is loaded.

#include "kernels.h"
#include "search.h"

#include "turbo/codebooks.inc"

#define TURBO_BOOK(X, NAME, name, k, L, V)                       \
    {                                                            \
        .entries = turbo_book_##name,                            \
        .unit = TURBO_UNIT_##name,                               \
        .unit_n = {TURBO_UNIT_128_##name, TURBO_UNIT_64_##name}, \
        .entry_count = (int) sizeof turbo_book_##name,           \
        .bits = (k),                                             \
        .window = (L),                                           \
        .step = (V),                                             \
        .step_bits = (k) * (V),                                  \
        .states = (L) == 0 ? 0 : 1 << ((L) - (k) * (V)),         \
        .mantissa = (L) == 0 ? 10 : 5,                           \
        .substeps = (L) == 0 ? 4 << (k) : TURBO_TRELLIS_SUBSTEPS, \
    },

static const turbo_book books[] = {
    TURBO_FAMILIES(TURBO_BOOK, )
    TURBO_TRIAL_FAMILIES(TURBO_BOOK, )
};

static uint32_t masks_128[128], masks_64[64];
static int16_t factors_128[128], factors_64[64];

const turbo_book *turbo_book_of(const turbo_type_desc *desc) {
    return &books[desc->index / 2]; // each family is two types, in the order of the table
}

const uint32_t *turbo_sign_words(int n) {
    return n == 128 ? turbo_signs_128 : turbo_signs_64;
}

const uint32_t *turbo_sign_masks(int n) {
    return n == 128 ? masks_128 : masks_64;
}

const int16_t *turbo_sign_factors(int n) {
    return n == 128 ? factors_128 : factors_64;
}

static void expand_signs(int n, uint32_t *masks, int16_t *factors) {
    const uint32_t *words = turbo_sign_words(n);
    for (int i = 0; i < n; i++) {
        const uint32_t minus = words[i / 32] >> i % 32 & 1u;
        masks[i] = minus << 31;
        factors[i] = minus ? -1 : 1;
    }
}

__attribute__((constructor)) static void fill_signs(void) {
    expand_signs(128, masks_128, factors_128);
    expand_signs(64, masks_64, factors_64);
}
