// AVX-512: the searches for scalar codes and, with VNNI, for trellis paths.

#include "simd.h"

#ifdef TURBO_HAVE_X86

// Number of thresholds below each magnitude.
TURBO_AVX512 INLINE __m512i count_below(__m512i value, const __m512i *thresholds, const int count) {
    __m512i m = _mm512_setzero_si512();
#pragma GCC unroll 7
    for (int t = 0; t < count; t++) {
        m = _mm512_mask_add_epi16(m, _mm512_cmpgt_epi16_mask(value, thresholds[t]), m, _mm512_set1_epi16(1));
    }
    return m;
}

TURBO_AVX512 INLINE void load_thresholds(const int16_t *from, __m512i *thresholds, const int count) {
#pragma GCC unroll 7
    for (int t = 0; t < count; t++) {
        thresholds[t] = _mm512_set1_epi16(from[t]);
    }
}

TURBO_AVX512 INLINE int32_t peak_of(const __m512i *values, int registers) {
    __m512i peak = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int i = 0; i < registers; i++) {
        peak = _mm512_max_epi16(peak, values[i]);
    }
    const __m512i odd = _mm512_srli_epi32(peak, 16);
    return _mm512_reduce_max_epi32(_mm512_max_epi32(odd, _mm512_and_si512(peak, _mm512_set1_epi32(0xffff))));
}

TURBO_AVX512 INLINE void choose_scalar(const turbo_book *book, const int16_t *q, const int n, turbo_choice *choice,
                                       const int half) {
    const turbo_scalar_search *search = turbo_scalar_search_of(book);
    const __m512i magnitudes =
        _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *) (const void *) search->magnitudes));
    const int registers = n / 32;
    __m512i values[TURBO_MAX_BLOCK / 32];
#pragma GCC unroll 4
    for (int i = 0; i < registers; i++) {
        values[i] = _mm512_abs_epi16(_mm512_loadu_si512(q + 32 * i));
    }
    const int first = turbo_first_gain(search, peak_of(values, registers));
    __m512i thresholds[TURBO_MAX_MAGNITUDES];
    int best_gain = first;
    float best = -1.0f;
    for (int t = 0; t < search->tries; t++) {
        const int gain = first + t * TURBO_GAIN_STEP;
        load_thresholds(search->thresholds[gain], thresholds, half - 1);
        __m512i num = _mm512_setzero_si512();
        __m512i den = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int i = 0; i < registers; i++) {
            const __m512i m = count_below(values[i], thresholds, half - 1);
            // the index in the low byte, "give 0" in the high one
            const __m512i index = _mm512_or_si512(m, _mm512_set1_epi16((short) 0x8000));
            const __m512i entry = _mm512_shuffle_epi8(magnitudes, index);
            num = _mm512_add_epi32(num, _mm512_madd_epi16(values[i], entry));
            den = _mm512_add_epi32(den, _mm512_madd_epi16(entry, entry));
        }
        const int32_t num_sum = _mm512_reduce_add_epi32(num);
        const int32_t den_sum = _mm512_reduce_add_epi32(den);
        const float quality = turbo_fit_quality(num_sum, den_sum);
        if (quality > best) {
            best = quality;
            best_gain = gain;
            choice->num = num_sum;
            choice->den = den_sum;
        }
    }
    load_thresholds(search->thresholds[best_gain], thresholds, half - 1);
    for (int i = 0; i < registers; i++) {
        const __m512i m = count_below(values[i], thresholds, half - 1);
        const __m512i sign = _mm512_srai_epi16(_mm512_loadu_si512(q + 32 * i), 15);
        _mm512_storeu_si512(choice->windows + 32 * i, // negative: half - 1 - m
                            _mm512_add_epi16(_mm512_xor_si512(m, sign), _mm512_set1_epi16((short) half)));
    }
}

TURBO_AVX512 void turbo_avx512_choose_scalar(const turbo_book *book, const int16_t *q, int n, turbo_choice *choice) {
    switch (book->bits * 256 + n) {
        case 2 * 256 + 128: choose_scalar(book, q, 128, choice, 2); break;
        case 3 * 256 + 128: choose_scalar(book, q, 128, choice, 4); break;
        case 4 * 256 + 128: choose_scalar(book, q, 128, choice, 8); break;
        case 2 * 256 + 64: choose_scalar(book, q, 64, choice, 2); break;
        case 3 * 256 + 64: choose_scalar(book, q, 64, choice, 4); break;
        default: choose_scalar(book, q, 64, choice, 8); break;
    }
}

// ---- trellis -------------------------------------------------------------------------------------------------------
//
// As in search_avx2.c, with registers of 16: the state after a step, t = (newest symbol a, rest r), follows from the
// states (r, p). Lanes are a, and where a has fewer than 4 bits also bits of r, low in the lane number, so that old
// metrics are broadcast loads of 1, 2 or 4 neighbours. The shuffle after a step puts the next neighbours side by side.

#define REGISTERS 4 // 64 states in registers of 16

typedef struct trellis_table {
    int16_t pairs[REGISTERS][16][16][2]; // per register, predecessor and lane: entry, entry^2
    int32_t symbols[REGISTERS][16];      // per place: the symbol that this state, as a predecessor, gives up
    uint8_t place[TURBO_MAX_STATES];     // where a state's metric is
} trellis_table;

static trellis_table tables[3]; // by bits - 2

// The state in a lane of a register when it is computed.
static int lane_state(int k, int reg, int lane) {
    switch (k) {
        case 2: return lane >> 2 << 4 | (lane & 3) << 2 | reg; // lanes (a, upper bits of r), registers the lower two
        case 3: return lane >> 1 << 3 | reg << 1 | (lane & 1); // lanes (a, lowest bit of r), registers the others
        default: return lane << 2 | reg;                       // lanes a, registers r
    }
}

// The lane of the computed register that a lane of the stored one comes from.
static int shuffled_lane(int k, int lane) {
    switch (k) {
        case 2: return (lane & 3) << 2 | lane >> 2;                          // (r, a): 4 x 4 transposed
        case 3: return (lane & 12) | (lane & 1) << 1 | (lane & 2) >> 1;      // lowest bits of a and r exchanged
        default: return lane;
    }
}

__attribute__((constructor)) static void fill_tables(void) {
    for (int k = 2; k <= 4; k++) {
        trellis_table *table = &tables[k - 2];
        const turbo_book *book = turbo_book_of(turbo_desc(TURBO_INDEX_TURBO2_TCQ + 2 * (k - 2)));
        for (int reg = 0; reg < REGISTERS; reg++) {
            for (int lane = 0; lane < 16; lane++) {
                for (int p = 0; p < 1 << k; p++) {
                    const int16_t entry = book->entries[lane_state(k, reg, lane) << k | p];
                    table->pairs[reg][p][lane][0] = entry;
                    table->pairs[reg][p][lane][1] = (int16_t) (entry * entry);
                }
                const int state = lane_state(k, reg, shuffled_lane(k, lane));
                table->symbols[reg][lane] = state & ((1 << k) - 1);
                table->place[state] = (uint8_t) (16 * reg + lane);
            }
        }
    }
}

// Old metrics that the lanes of a register have as their predecessors with symbol p.
TURBO_AVX512_VNNI INLINE __m512i load_old(const int32_t *old, const int k, int reg, int p) {
    switch (k) {
        case 2: // old (r1 r0 p), over r1: stored in register p, lanes (r0, r1)
            return _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *) (const void *) (old + 16 * p + 4 * reg)));
        case 3: { // old (r2 r1 r0 p), over r0: stored in register p2 p1, lanes (r2 r1 p0 r0)
            int64_t pair;
            memcpy(&pair, old + 16 * (p >> 1) + 4 * reg + 2 * (p & 1), sizeof pair);
            return _mm512_set1_epi64(pair);
        }
        default: // old (r, p): stored in register p1 p0, lane (r, p3 p2)
            return _mm512_set1_epi32(old[16 * (p & 3) + 4 * reg + (p >> 2)]);
    }
}

TURBO_AVX512_VNNI INLINE __m512i shuffle(__m512i v, const int k) {
    switch (k) {
        case 2: {
            const __m512i transpose = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            return _mm512_permutexvar_epi32(transpose, v);
        }
        case 3: return _mm512_shuffle_epi32(v, 0xd8);
        default: return v;
    }
}

// All steps of all versions. The versions go side by side: their minima do not wait for each other, and each pair of
// the table is loaded once for all.
TURBO_AVX512_VNNI INLINE void viterbi(const trellis_table *table, const int16_t (*q)[TURBO_MAX_BLOCK], int n,
                                      int32_t (*metrics)[TURBO_MAX_STATES], turbo_decisions *decisions, const int k) {
    const __m512i predecessor_bits = _mm512_set1_epi32((1 << TURBO_SIMD_SHIFT) - 1);
    for (int t = 0; t < TURBO_TRIES; t++) {
        memcpy(metrics[t], table->symbols, sizeof metrics[t]);
    }
    for (int i = 0; i < n; i++) {
        __m512i value[TURBO_TRIES];
        __m512i best[TURBO_TRIES][REGISTERS];
#pragma GCC unroll 3
        for (int t = 0; t < TURBO_TRIES; t++) {
            value[t] = _mm512_set1_epi32((int32_t) ((uint16_t) (-16 * turbo_viterbi_value(q[t][i])) | 64u << 16));
        }
#pragma GCC unroll 4
        for (int reg = 0; reg < REGISTERS; reg++) {
#pragma GCC unroll 16
            for (int p = 0; p < 1 << k; p++) {
                const __m512i pair = _mm512_loadu_si512(table->pairs[reg][p]);
#pragma GCC unroll 3
                for (int t = 0; t < TURBO_TRIES; t++) {
                    const __m512i metric = _mm512_dpwssd_epi32(load_old(metrics[t], k, reg, p), pair, value[t]);
                    best[t][reg] = p == 0 ? metric : _mm512_min_epi32(best[t][reg], metric);
                }
            }
        }
#pragma GCC unroll 3
        for (int t = 0; t < TURBO_TRIES; t++) {
#pragma GCC unroll 4
            for (int reg = 0; reg < REGISTERS; reg++) {
                const __m512i v = shuffle(best[t][reg], k);
                _mm_storeu_si128((__m128i *) (void *) (decisions[i][t] + 16 * reg), _mm512_cvtepi32_epi8(v));
                const __m512i symbols = _mm512_loadu_si512(table->symbols[reg]);
                _mm512_store_si512(metrics[t] + 16 * reg,
                                   _mm512_or_si512(_mm512_andnot_si512(predecessor_bits, v), symbols));
            }
        }
    }
}

TURBO_AVX512_VNNI void turbo_avx512_choose_trellis(const turbo_book *book, const int16_t (*q)[TURBO_MAX_BLOCK], int n,
                                                   turbo_choice *choices) {
    if (book->step != 1) {
        turbo_kernels_portable.choose_trellis(book, q, n, choices);
        return;
    }
    _Alignas(64) int32_t metrics[TURBO_TRIES][TURBO_MAX_STATES];
    turbo_decisions decisions[TURBO_MAX_BLOCK];
    const trellis_table *table = &tables[book->bits - 2];
    switch (book->bits) {
        case 2: viterbi(table, q, n, metrics, decisions, 2); break;
        case 3: viterbi(table, q, n, metrics, decisions, 3); break;
        default: viterbi(table, q, n, metrics, decisions, 4); break;
    }
    turbo_trace_back(book, (const turbo_decisions *) decisions, table->place,
                     (const int32_t (*)[TURBO_MAX_STATES]) metrics, TURBO_SIMD_SHIFT, q, n, choices);
}

#endif // TURBO_HAVE_X86
