// AVX2: the searches for scalar codes and for trellis paths.

#include "simd.h"

#ifdef TURBO_HAVE_X86

TURBO_AVX2 INLINE __m256i load(const int16_t *q) {
    return _mm256_loadu_si256((const __m256i *) (const void *) q);
}

TURBO_AVX2 INLINE int32_t sum_32(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

TURBO_AVX2 INLINE int32_t peak_of(const int16_t *q, int n) {
    __m256i peak = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 16) {
        peak = _mm256_max_epi16(peak, _mm256_abs_epi16(load(q + i)));
    }
    __m128i m = _mm_max_epi16(_mm256_castsi256_si128(peak), _mm256_extracti128_si256(peak, 1));
    m = _mm_sub_epi16(_mm_set1_epi16(32767), m);
    return 32767 - _mm_extract_epi16(_mm_minpos_epu16(m), 0);
}

// Number of thresholds below each magnitude.
TURBO_AVX2 INLINE __m256i count_below(__m256i value, const __m256i *thresholds,
                                      const int count) {
    __m256i m = _mm256_setzero_si256();
#pragma GCC unroll 7
    for (int t = 0; t < count; t++) {
        m = _mm256_sub_epi16(m, _mm256_cmpgt_epi16(value, thresholds[t]));
    }
    return m;
}

TURBO_AVX2 INLINE void load_thresholds(const int16_t *from, __m256i *thresholds, int count) {
    for (int t = 0; t < count; t++) {
        thresholds[t] = _mm256_set1_epi16(from[t]);
    }
}

TURBO_AVX2 INLINE void choose_scalar(const turbo_book *book, const int16_t *q,
                                     int n, turbo_choice *choice, const int half) {
    const turbo_scalar_search *search = turbo_scalar_search_of(book);
    const __m256i magnitudes =
        _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) (const void *) search->magnitudes));
    const int first = turbo_first_gain(search, peak_of(q, n));
    __m256i thresholds[TURBO_MAX_MAGNITUDES];
    int best_gain = first;
    float best = -1.0f;
    for (int t = 0; t < search->tries; t++) {
        const int gain = first + t * TURBO_GAIN_STEP;
        load_thresholds(search->thresholds[gain], thresholds, half - 1);
        __m256i num = _mm256_setzero_si256();
        __m256i den = _mm256_setzero_si256();
        for (int i = 0; i < n; i += 16) {
            const __m256i value = _mm256_abs_epi16(load(q + i));
            const __m256i m = count_below(value, thresholds, half - 1);
            // the index in the low byte, "give 0" in the high one
            const __m256i index = _mm256_or_si256(m, _mm256_set1_epi16((short) 0x8000));
            const __m256i entry = _mm256_shuffle_epi8(magnitudes, index);
            num = _mm256_add_epi32(num, _mm256_madd_epi16(value, entry));
            den = _mm256_add_epi32(den, _mm256_madd_epi16(entry, entry));
        }
        const int32_t num_sum = sum_32(num);
        const int32_t den_sum = sum_32(den);
        const float quality = turbo_fit_quality(num_sum, den_sum);
        if (quality > best) {
            best = quality;
            best_gain = gain;
            choice->num = num_sum;
            choice->den = den_sum;
        }
    }
    load_thresholds(search->thresholds[best_gain], thresholds, half - 1);
    for (int i = 0; i < n; i += 16) {
        const __m256i value = load(q + i);
        const __m256i m = count_below(_mm256_abs_epi16(value), thresholds, half - 1);
        const __m256i signed_m = _mm256_xor_si256(m, _mm256_srai_epi16(value, 15)); // negative: -1 - m
        _mm256_storeu_si256((__m256i *) (void *) (choice->windows + i),
                            _mm256_add_epi16(signed_m, _mm256_set1_epi16((short) half)));
    }
}

TURBO_AVX2 void turbo_avx2_choose_scalar(const turbo_book *book, const int16_t *q, int n, turbo_choice *choice) {
    switch (book->bits) {
        case 2: choose_scalar(book, q, n, choice, 2); break;
        case 3: choose_scalar(book, q, n, choice, 4); break;
        default: choose_scalar(book, q, n, choice, 8); break;
    }
}

// ---- trellis -------------------------------------------------------------------------------------------------------
//
// The state after a step, t = (newest symbol a, rest r), follows from the states (r, p), p any symbol. A register of
// new metrics holds lanes of a (and, for 2 bits, a bit of r), so that each old metric is a broadcast load, and its
// window's error is one multiply-add of the pair (entry, entry^2) with (-16 q, 64). No shuffles, but one for 2 bits.

#define MAX_REGISTERS 8 // 64 states in registers of 8

typedef struct trellis_table {
    int16_t pairs[MAX_REGISTERS][16][8][2]; // per register, predecessor and lane: entry, entry^2
    int32_t symbols[MAX_REGISTERS][8];      // per place: the symbol that this state, as a predecessor, gives up
    uint8_t place[TURBO_MAX_STATES];        // where a state's metric is
} trellis_table;

static trellis_table tables[3]; // by bits - 2

// The state in a lane of a register when it is computed.
static int lane_state(int k, int reg, int lane) {
    switch (k) {
        case 2: // lanes (a1 a0 r2), registers (r3 r1 r0)
            return (lane >> 1) << 4 | (reg >> 2) << 3 | (lane & 1) << 2 | (reg & 3);
        case 3: // lanes a, registers r
            return lane << 3 | reg;
        default: // lanes the low three bits of a, registers (r, top bit of a)
            return ((reg & 1) << 3 | lane) << 2 | reg >> 1;
    }
}

// The state in a lane when it is stored: for 2 bits the two low lane bits are exchanged, so that pairs over the next
// step's lane bit of r lie side by side.
static int stored_state(int k, int reg, int lane) {
    return lane_state(k, reg, k == 2 ? (lane & 4) | (lane & 1) << 1 | (lane & 2) >> 1 : lane);
}

__attribute__((constructor)) static void fill_tables(void) {
    for (int k = 2; k <= 4; k++) {
        trellis_table *table = &tables[k - 2];
        const turbo_book *book = turbo_book_of(turbo_desc(TURBO_INDEX_TURBO2_TCQ + 2 * (k - 2)));
        for (int reg = 0; reg < MAX_REGISTERS; reg++) {
            for (int lane = 0; lane < 8; lane++) {
                for (int p = 0; p < 1 << k; p++) {
                    const int16_t entry = book->entries[lane_state(k, reg, lane) << k | p];
                    table->pairs[reg][p][lane][0] = entry;
                    table->pairs[reg][p][lane][1] = (int16_t) (entry * entry);
                }
                const int state = stored_state(k, reg, lane);
                table->symbols[reg][lane] = state & ((1 << k) - 1);
                table->place[state] = (uint8_t) (8 * reg + lane);
            }
        }
    }
}

// Old metrics that the lanes of a register have as their predecessors with symbol p.
TURBO_AVX2 INLINE __m256i load_old(const int32_t *old, const int k, int reg, int p) {
    switch (k) {
        case 2: {
            // predecessors r = (r3 x r1 r0) over lane bit x: in register (r3' r1' r0') = (r1 p1 p0), lanes (r3 r0 x)
            const int place = ((reg & 2) >> 1 << 2 | p) * 8 + (reg >> 2) * 4 + (reg & 1) * 2;
            int64_t pair;
            memcpy(&pair, old + place, sizeof pair);
            return _mm256_set1_epi64x(pair);
        }
        case 3: return _mm256_set1_epi32(old[p * 8 + reg]);
        default: { // predecessor (r, p): a' = (r, p3 p2), r' = (p1 p0)
            const int a = (reg >> 1) << 2 | p >> 2;
            return _mm256_set1_epi32(old[((p & 3) << 1 | a >> 3) * 8 + (a & 7)]);
        }
    }
}

// The low bytes of eight registers of eight, in order: 64 bytes.
TURBO_AVX2 INLINE void store_bytes(const __m256i *v, uint8_t *to) {
    const __m256i byte = _mm256_set1_epi32(0xff);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
#pragma GCC unroll 2
    for (int half = 0; half < 2; half++, v += 4, to += 32) {
        const __m256i low = _mm256_packus_epi32(_mm256_and_si256(v[0], byte), _mm256_and_si256(v[1], byte));
        const __m256i high = _mm256_packus_epi32(_mm256_and_si256(v[2], byte), _mm256_and_si256(v[3], byte));
        const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packus_epi16(low, high), order);
        _mm256_storeu_si256((__m256i *) (void *) to, bytes);
    }
}

// Metrics after a step as the next one reads them, and the decisions.
TURBO_AVX2 INLINE void end_step(const trellis_table *table, const int32_t *after, int32_t *metrics,
                                uint8_t *decisions) {
    const __m256i predecessor_bits = _mm256_set1_epi32((1 << TURBO_SIMD_SHIFT) - 1);
    __m256i v[MAX_REGISTERS];
#pragma GCC unroll 8
    for (int reg = 0; reg < MAX_REGISTERS; reg++) {
        v[reg] = _mm256_load_si256((const __m256i *) (const void *) (after + 8 * reg));
        const __m256i symbols = _mm256_loadu_si256((const __m256i *) (const void *) table->symbols[reg]);
        _mm256_store_si256((__m256i *) (void *) (metrics + 8 * reg),
                           _mm256_or_si256(_mm256_andnot_si256(predecessor_bits, v[reg]), symbols));
    }
    store_bytes(v, decisions);
}

// All steps of all versions. The versions go side by side: their minima do not wait for each other, and each pair of
// the table is loaded once for all.
TURBO_AVX2 INLINE void viterbi(const trellis_table *table, const int16_t (*q)[TURBO_MAX_BLOCK], int n,
                               int32_t (*metrics)[TURBO_MAX_STATES], turbo_decisions *decisions, const int k) {
    _Alignas(32) int32_t after[TURBO_TRIES][TURBO_MAX_STATES];
    for (int t = 0; t < TURBO_TRIES; t++) {
        memcpy(metrics[t], table->symbols, sizeof metrics[t]);
    }
    for (int i = 0; i < n; i++) {
        __m256i value[TURBO_TRIES];
#pragma GCC unroll 3
        for (int t = 0; t < TURBO_TRIES; t++) {
            value[t] = _mm256_set1_epi32((int32_t) ((uint16_t) (-16 * turbo_viterbi_value(q[t][i])) | 64u << 16));
        }
#pragma GCC unroll 8
        for (int reg = 0; reg < MAX_REGISTERS; reg++) {
            __m256i best[TURBO_TRIES];
#pragma GCC unroll 16
            for (int p = 0; p < 1 << k; p++) {
                const __m256i pair = _mm256_loadu_si256((const __m256i *) (const void *) table->pairs[reg][p]);
#pragma GCC unroll 3
                for (int t = 0; t < TURBO_TRIES; t++) {
                    const __m256i error = _mm256_madd_epi16(pair, value[t]);
                    const __m256i metric = _mm256_add_epi32(error, load_old(metrics[t], k, reg, p));
                    best[t] = p == 0 ? metric : _mm256_min_epi32(best[t], metric);
                }
            }
#pragma GCC unroll 3
            for (int t = 0; t < TURBO_TRIES; t++) {
                const __m256i v = k == 2 ? _mm256_shuffle_epi32(best[t], 0xd8) : best[t];
                _mm256_store_si256((__m256i *) (void *) (after[t] + 8 * reg), v);
            }
        }
#pragma GCC unroll 3
        for (int t = 0; t < TURBO_TRIES; t++) {
            end_step(table, after[t], metrics[t], decisions[i][t]);
        }
    }
}

TURBO_AVX2 void turbo_avx2_choose_trellis(const turbo_book *book, const int16_t (*q)[TURBO_MAX_BLOCK], int n,
                                          turbo_choice *choices) {
    if (book->step != 1) {
        turbo_kernels_portable.choose_trellis(book, q, n, choices);
        return;
    }
    _Alignas(32) int32_t metrics[TURBO_TRIES][TURBO_MAX_STATES];
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
