// What the searches of all paths share.

#include "search.h"

// By bits - 2: the gain that suits a block with peak / rms = r is base + slope * r (fitted on Gaussian blocks of 128).
// The fewer levels, the more blocks with outliers stray from it, and the cheaper another try.
static const struct {
    float base, slope;
    int tries;
} fits[3] = {{0.883f, 0.0390f, 9}, {0.439f, 0.2008f, 7}, {0.051f, 0.3236f, 7}};

static turbo_scalar_search searches[3]; // by bits - 2

static void fill_search(const turbo_book *book, turbo_scalar_search *search) {
    const float base = fits[book->bits - 2].base;
    const float slope = fits[book->bits - 2].slope;
    const int count = book->entry_count / 2;
    const int8_t *magnitudes = book->entries + count;
    for (int i = 0; i < 16; i++) {
        search->magnitudes[i] = magnitudes[i % count];
    }
    for (int g = 0; g < TURBO_GAIN_COUNT; g++) {
        const float gain = TURBO_FIRST_GAIN + (float) g / 32;
        for (int t = 0; t + 1 < count; t++) {
            const float middle = 0.5f * (float) book->substeps * (float) (magnitudes[t] + magnitudes[t + 1]);
            search->thresholds[g][t] = (int16_t) (middle * gain + 0.5f);
        }
    }
    const float half = 0.5f; // to round
    search->tries = fits[book->bits - 2].tries;
    search->fit_offset = (int32_t) (65536 * (32 * (base - TURBO_FIRST_GAIN) + half));
    search->fit_slope = (int32_t) (65536 * 32 * slope * book->unit / (float) book->substeps + half);
    search->top_offset = (int32_t) (65536 * (32 * -TURBO_FIRST_GAIN + half));
    search->top_slope = (int32_t) (65536 * 32 / (float) (magnitudes[count - 1] * book->substeps) + half);
}

__attribute__((constructor)) static void fill_searches(void) {
    for (int index = TURBO_INDEX_TURBO2; index <= TURBO_INDEX_TURBO4; index += 2) {
        const turbo_book *book = turbo_book_of(turbo_desc(index));
        fill_search(book, &searches[book->bits - 2]);
    }
}

const turbo_scalar_search *turbo_scalar_search_of(const turbo_book *book) {
    return &searches[book->bits - 2];
}

// The state with the least metric, the least-numbered on ties.
static uint32_t best_end(const int32_t *metrics, const uint8_t *place, int states, int shift) {
    uint32_t state = 0;
    int32_t least = metrics[place[0]] >> shift;
    for (int s = 1; s < states; s++) {
        const int32_t metric = metrics[place[s]] >> shift;
        state = metric < least ? (uint32_t) s : state;
        least = metric < least ? metric : least;
    }
    return state;
}

void turbo_trace_back(const turbo_book *book, const turbo_decisions *decisions, const uint8_t *place,
                      const int32_t (*metrics)[TURBO_MAX_STATES], int shift, const int16_t (*q)[TURBO_MAX_BLOCK],
                      int n, turbo_choice *choices) {
    const int step = book->step;
    const int step_bits = book->step_bits;
    const uint32_t symbol_mask = (1u << step_bits) - 1;
    const uint32_t state_mask = (uint32_t) book->states - 1;
    uint32_t states[TURBO_TRIES];
    int32_t num[TURBO_TRIES] = {0};
    int32_t den[TURBO_TRIES] = {0};
    for (int t = 0; t < TURBO_TRIES; t++) {
        states[t] = best_end(metrics[t], place, book->states, shift);
    }
    for (int i = n / step - 1; i >= 0; i--) {
#pragma GCC unroll 3
        for (int t = 0; t < TURBO_TRIES; t++) { // in turns: each chain of loads is slow, several at once are not
            const uint32_t w = states[t] << step_bits | (decisions[i][t][place[states[t]]] & symbol_mask);
            choices[t].windows[i] = (uint16_t) w;
            states[t] = w & state_mask;
            for (int v = 0; v < step; v++) {
                const int32_t entry = book->entries[w * (uint32_t) step + (uint32_t) v];
                num[t] += q[t][i * step + v] * entry;
                den[t] += entry * entry;
            }
        }
    }
    for (int t = 0; t < TURBO_TRIES; t++) {
        choices[t].num = num[t];
        choices[t].den = den[t];
    }
}
