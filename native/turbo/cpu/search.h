// Shared by the searches of all paths: gains and thresholds of the scalar search, and the trellis trace-back.

#ifndef TURBO_CPU_SEARCH_H
#define TURBO_CPU_SEARCH_H

#include "kernels.h"

// Scalar search. A block is quantised at several gains (quantiser scale / block rms) around the one that its peak
// suggests, and the best fit is kept: peaked blocks want a wider quantiser, flat ones a finer one. Gain i of the grid
// is 1/4 + i/32; the tried ones lie TURBO_GAIN_STEP apart. Magnitudes only: books are antisymmetric.
#define TURBO_GAIN_COUNT 80
#define TURBO_FIRST_GAIN 0.25f
#define TURBO_GAIN_STEP 2
#define TURBO_MAX_MAGNITUDES 8

typedef struct turbo_scalar_search {
    int8_t magnitudes[16];                                     // the positive entries ascending, repeated to 16
    int16_t thresholds[TURBO_GAIN_COUNT][TURBO_MAX_MAGNITUDES]; // per gain: between neighbouring magnitudes
    int tries; // how many gains
    // index of the middle gain: the smaller of two lines in the peak, (offset + slope * peak) >> 16
    int32_t fit_offset, fit_slope; // what suits Gaussian blocks best
    int32_t top_offset, top_slope; // the gain whose largest magnitude is the peak, for blocks of few magnitudes
} turbo_scalar_search;

const turbo_scalar_search *turbo_scalar_search_of(const turbo_book *book);

// The first (finest) gain to try for a block whose largest |quantised value| is `peak`.
static inline int turbo_first_gain(const turbo_scalar_search *search, int32_t peak) {
    const int reach = search->tries / 2 * TURBO_GAIN_STEP;
    const int32_t fitted = search->fit_offset + search->fit_slope * peak;
    const int32_t at_top = search->top_offset + search->top_slope * peak;
    const int32_t centre = (fitted < at_top ? fitted : at_top) >> 16;
    const int32_t last = TURBO_GAIN_COUNT - 1 - reach;
    return (centre < reach ? reach : centre > last ? last : centre) - reach;
}

// How much of the block's energy the codes explain once their scale is fitted.
static inline float turbo_fit_quality(int32_t num, int32_t den) {
    const float ratio = (float) num / (float) den;
    return ratio * (float) num;
}

// Trellis search. Squared error is (entry - y)^2; less y^2, and in quarters of a squared step, 4 e^2 - (8 y) e, with y
// to 1/8 of a step. Metrics are kept as metric << shift | predecessor, so that one minimum finds both.
#define TURBO_TRELLIS_SUBSTEPS 64
#define TURBO_VITERBI_MAX 2047  // |8 y| that metrics see: 16 * 2047 and 64 * 127^2 fit the SIMD paths' words
#define TURBO_SIMD_SHIFT 4      // room for 4-bit symbols
#define TURBO_PORTABLE_SHIFT 6  // room for the 6-bit symbols of two values a step

// 8 y of a quantised value.
static inline int32_t turbo_viterbi_value(int32_t q) {
    const int32_t eighths = (q + 4) >> 3; // from 1/64 to 1/8, rounded
    const int32_t limit = TURBO_VITERBI_MAX;
    return eighths > limit ? limit : eighths < -limit ? -limit : eighths;
}

// Where the searches leave their decisions: for step, version and state the symbol that the best path into the state
// gives up (bits above the symbol's may hold anything). State s is at place[s], and so is its last metric.
typedef uint8_t turbo_decisions[TURBO_TRIES][TURBO_MAX_STATES];

// From decisions and the metrics after the last step to windows, num and den of each version.
void turbo_trace_back(const turbo_book *book, const turbo_decisions *decisions, const uint8_t *place,
                      const int32_t (*metrics)[TURBO_MAX_STATES], int shift, const int16_t (*q)[TURBO_MAX_BLOCK],
                      int n, turbo_choice *choices);

#endif // TURBO_CPU_SEARCH_H
