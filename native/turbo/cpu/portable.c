// The steps in plain C: the reference for the SIMD versions, and the path of CPUs without them.

#include "kernels.h"
#include "search.h"

#define ROUND_BIAS 12582912.0f // 1.5 * 2^23: adding it rounds a small float to an integer, ties to even

static void hadamard(float *y, int n) {
    for (int h = 1; h < n; h *= 2) {
        for (int i = 0; i < n; i += 2 * h) {
            for (int j = i; j < i + h; j++) {
                const float a = y[j];
                const float b = y[j + h];
                y[j] = a + b;
                y[j + h] = a - b;
            }
        }
    }
}

static float flip(float value, uint32_t mask) {
    return turbo_float_from_bits(turbo_float_bits(value) ^ mask);
}

static void rotate(const float *x, float *y, int n, float post) {
    const uint32_t *signs = turbo_sign_masks(n);
    for (int i = 0; i < n; i++) {
        y[i] = flip(x[i], signs[i]);
    }
    hadamard(y, n);
    for (int i = 0; i < n; i++) {
        y[i] *= post;
    }
}

static void unrotate(const float *x, float *y, int n, float post) {
    const uint32_t *signs = turbo_sign_masks(n);
    if (y != x) {
        memcpy(y, x, (size_t) n * sizeof *y);
    }
    hadamard(y, n);
    for (int i = 0; i < n; i++) {
        y[i] = flip(y[i] * post, signs[i]);
    }
}

static float sum_squares(const float *y, int n) {
    float sums[16] = {0};
    for (int i = 0; i < n; i += 16) {
        for (int j = 0; j < 16; j++) {
            const float square = y[i + j] * y[i + j];
            sums[j] = sums[j] + square;
        }
    }
    for (int half = 8; half > 0; half /= 2) {
        for (int j = 0; j < half; j++) {
            sums[j] += sums[j + half];
        }
    }
    return sums[0];
}

static uint32_t max_bits(const float *x, int n) {
    uint32_t largest = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t bits = turbo_float_bits(x[i]) & 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

static void quantise(const float *y, int16_t *q, int n, float factor) {
    const float limit = (float) TURBO_SUBSTEP_MAX;
    for (int i = 0; i < n; i++) {
        float value = y[i] * factor;
        value = value < limit ? value : limit;
        value = value > -limit ? value : -limit;
        q[i] = (int16_t) (turbo_float_bits(value + ROUND_BIAS) - 0x4b400000u);
    }
}

// Codes of a block at one gain; num and den of their fit. Magnitude by thresholds, then the sign: 0 counts as positive.
static void quantise_scalar(const turbo_book *book, const int16_t *thresholds, const int16_t *q, int n,
                            turbo_choice *choice) {
    const int half = book->entry_count / 2;
    choice->num = 0;
    choice->den = 0;
    for (int i = 0; i < n; i++) {
        const int32_t value = q[i] < 0 ? -q[i] : q[i];
        int m = 0;
        for (int t = 0; t < half - 1; t++) {
            m += value > thresholds[t];
        }
        const int32_t entry = book->entries[half + m];
        choice->windows[i] = (uint16_t) (q[i] < 0 ? half - 1 - m : half + m);
        choice->num += value * entry;
        choice->den += entry * entry;
    }
}

static void choose_scalar(const turbo_book *book, const int16_t *q, int n, turbo_choice *choice) {
    const turbo_scalar_search *search = turbo_scalar_search_of(book);
    int32_t peak = 0;
    for (int i = 0; i < n; i++) {
        const int32_t value = q[i] < 0 ? -q[i] : q[i];
        peak = value > peak ? value : peak;
    }
    const int first = turbo_first_gain(search, peak);
    int best_gain = first;
    float best = -1.0f;
    for (int t = 0; t < search->tries; t++) {
        const int gain = first + t * TURBO_GAIN_STEP;
        quantise_scalar(book, search->thresholds[gain], q, n, choice);
        const float quality = turbo_fit_quality(choice->num, choice->den);
        if (quality > best) {
            best = quality;
            best_gain = gain;
        }
    }
    quantise_scalar(book, search->thresholds[best_gain], q, n, choice);
}

// One trellis step: metrics of the states after it, in place of those before it, and what they decided.
static void viterbi_step(const turbo_book *book, const int16_t *q, int32_t *metrics, uint8_t *decisions) {
    const int predecessors = 1 << book->step_bits;
    const int8_t *entry = book->entries;
    int32_t old[TURBO_MAX_STATES]; // without their own predecessors
    for (int state = 0; state < book->states; state++) {
        old[state] = metrics[state] & ~((1 << TURBO_PORTABLE_SHIFT) - 1);
    }
    const int32_t first = turbo_viterbi_value(q[0]);
    const int32_t second = book->step == 2 ? turbo_viterbi_value(q[1]) : 0;
    for (int state = 0; state < book->states; state++) {
        const int32_t *from = old + ((state << book->step_bits) & (book->states - 1));
        int32_t best = INT32_MAX;
        for (int p = 0; p < predecessors; p++, entry += book->step) {
            int32_t error = entry[0] * (4 * entry[0] - first);
            if (book->step == 2) {
                error += entry[1] * (4 * entry[1] - second);
            }
            const int32_t metric = from[p & (book->states - 1)] + error * (1 << TURBO_PORTABLE_SHIFT) + p;
            best = metric < best ? metric : best;
        }
        metrics[state] = best;
        decisions[state] = (uint8_t) best;
    }
}

static void choose_trellis(const turbo_book *book, const int16_t (*q)[TURBO_MAX_BLOCK], int n,
                           turbo_choice *choices) {
    int32_t metrics[TURBO_TRIES][TURBO_MAX_STATES] = {{0}}; // every start state is free
    turbo_decisions decisions[TURBO_MAX_BLOCK];
    uint8_t place[TURBO_MAX_STATES];
    for (int s = 0; s < TURBO_MAX_STATES; s++) {
        place[s] = (uint8_t) s;
    }
    for (int i = 0; i < n / book->step; i++) {
        for (int t = 0; t < TURBO_TRIES; t++) {
            viterbi_step(book, q[t] + i * book->step, metrics[t], decisions[i][t]);
        }
    }
    turbo_trace_back(book, (const turbo_decisions *) decisions, place, (const int32_t (*)[TURBO_MAX_STATES]) metrics,
                     TURBO_PORTABLE_SHIFT, q, n, choices);
}

static void unpack_scalar(const turbo_book *book, const uint8_t *bytes, int n, int8_t *codes) {
    const int k = book->bits;
    for (int g = 0; g < n / 32; g++, codes += 32) {
        for (int p = 0; p < k; p++, bytes += 4) {
            for (int m = 0; m < 8; m++) {
                const uint32_t nibble = bytes[m / 2] >> 4 * (m & 1) & 15u;
                if (k == 4) {
                    codes[8 * p + m] = book->entries[nibble];
                } else if (k == 2) {
                    codes[8 * p + m] = book->entries[nibble & 3u];
                    codes[16 + 8 * p + m] = book->entries[nibble >> 2];
                } else {
                    const int collected = (p == 0 ? 0 : codes[24 + m]) | (int) (nibble >> 3) << p;
                    codes[8 * p + m] = book->entries[nibble & 7u];
                    codes[24 + m] = p < 2 ? (int8_t) collected : book->entries[collected];
                }
            }
        }
    }
}

static void unpack_trellis(const turbo_book *book, const uint8_t *block, int n, int8_t *codes) {
    uint8_t padded[TURBO_MAX_BYTES + 4] = {0}; // windows are read as 32-bit words
    memcpy(padded, block, (size_t) TURBO_BLOCK_BYTES(book->bits, n));
    int bit = TURBO_HEADER_BITS + book->step_bits - book->window;
    for (int i = 0; i < n / book->step; i++, bit += book->step_bits) {
        const uint8_t *b = padded + bit / 8;
        const uint32_t word = b[0] | (uint32_t) b[1] << 8 | (uint32_t) b[2] << 16;
        const uint32_t w = word >> bit % 8 & ((1u << book->window) - 1);
        for (int v = 0; v < book->step; v++) {
            *codes++ = book->entries[w * (uint32_t) book->step + (uint32_t) v];
        }
    }
}

static void unpack(const turbo_book *book, const uint8_t *blocks, size_t stride, int64_t count, int n, int8_t *codes) {
    for (int64_t b = 0; b < count; b++, blocks += stride, codes += n) {
        if (book->states == 0) {
            unpack_scalar(book, blocks + TURBO_HEADER_BITS / 8, n, codes);
        } else {
            unpack_trellis(book, blocks, n, codes);
        }
    }
}

static void unrotate_codes(const int8_t *codes, float *y, int n, float factor) {
    const int16_t *signs = turbo_sign_factors(n);
    int16_t z[TURBO_MAX_BLOCK];
    for (int i = 0; i < n; i++) {
        z[i] = codes[i];
    }
    for (int h = 1; h < n; h *= 2) {
        for (int i = 0; i < n; i += 2 * h) {
            for (int j = i; j < i + h; j++) {
                const int16_t a = z[j];
                const int16_t b = z[j + h];
                z[j] = (int16_t) (a + b);
                z[j + h] = (int16_t) (a - b);
            }
        }
    }
    for (int i = 0; i < n; i++) {
        y[i] = (float) (signs[i] * z[i]) * factor;
    }
}

static float dot(const int8_t *codes, const float *y, int n) {
    float sums[4] = {0};
    for (int i = 0; i < n; i += 4) {
        for (int j = 0; j < 4; j++) {
            sums[j] += (float) codes[i + j] * y[i + j];
        }
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

const turbo_kernels turbo_kernels_portable = {
    .name = "portable",
    .rotate = rotate,
    .unrotate = unrotate,
    .sum_squares = sum_squares,
    .max_bits = max_bits,
    .quantise = quantise,
    .choose_scalar = choose_scalar,
    .choose_trellis = choose_trellis,
    .unpack = unpack,
    .unrotate_codes = unrotate_codes,
    .dot = dot,
};
