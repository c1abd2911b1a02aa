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

void turbo_trace_back(const turbo_book *book, const int32_t (*metrics)[TURBO_MAX_STATES], const uint8_t *place,
                      int shift, const int16_t *q, int n, turbo_choice *choice) {
    const int steps = n / book->step;
    const uint32_t predecessor_mask = (1u << book->step_bits) - 1;
    uint32_t state = 0;
    for (uint32_t s = 1; s < (uint32_t) book->states; s++) {
        if (metrics[steps - 1][place[s]] >> shift < metrics[steps - 1][place[state]] >> shift) {
            state = s;
        }
    }
    int32_t num = 0;
    int32_t den = 0;
    for (int i = steps - 1; i >= 0; i--) {
        const uint32_t p = (uint32_t) metrics[i][place[state]] & predecessor_mask;
        const uint32_t w = state << book->step_bits | p;
        choice->windows[i] = (uint16_t) w;
        for (int v = 0; v < book->step; v++) {
            const int32_t entry = book->entries[w * (uint32_t) book->step + (uint32_t) v];
            num += q[i * book->step + v] * entry;
            den += entry * entry;
        }
        state = w & (uint32_t) (book->states - 1);
    }
    choice->num = num;
    choice->den = den;
}
