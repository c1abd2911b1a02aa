// The steps of CPU flash attention that depend on the instruction set, as a table of functions.
//
// Vocabulary: a tile is tile_keys consecutive keys (or values) of one KV head. A row is one query of one head; a
// panel is up to `kernels.panel` rows that go through a tile together. `width` is how many of a key's values share
// one scale: the block of a turbo type, the whole head for a type that is read as floats. It is a multiple of 32. An
// engine is one arithmetic for the two products: float32, or int16 x int16 -> int32 (exact for integer codes; queries
// and weights are rounded to 16 bits of their largest value, an error of 1e-9 of the variance).

#ifndef TURBO_CPU_FATTN_KERNELS_H
#define TURBO_CPU_FATTN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

namespace turbo_fattn {

constexpr int tile_keys = 64;
constexpr int max_panel = 6;
constexpr int pack_keys_each = 16; // float keys that are transposed together
constexpr int sum_lanes = 16;      // running sums of a row, side by side

struct engine {
    size_t element; // bytes of one value in a tile and in a stored query

    // Store `width` rotated query values; *scale is what a product with the stored values must be multiplied by.
    void (*store_query)(const float *query, int width, void *stored, float *scale);

    // Codes of a tile, [tile_keys][width], into the engine's layout of keys or of values.
    void (*pack_key_codes)(const int8_t *codes, int width, void *tile);
    void (*pack_value_codes)(const int8_t *codes, int width, void *tile);

    // scores[r][key] = (or, unless `first`, +=) query_r . key * query_scales[r * scale_stride] * key_scales[key]
    // queries: rows query_stride bytes apart; scores: [rows][tile_keys].
    void (*scores)(const void *queries, size_t query_stride, const float *query_scales, size_t scale_stride, int rows,
                   const void *tile, int width, const float *key_scales, bool first, float *scores);

    // Weights of the values in the engine's own numbers: probabilities [rows][tile_keys] times value_scales[key].
    // *unit (one a row) is what a product with the stored weights must be multiplied by. A probability of zero gives
    // a weight of zero whatever the scale, so a masked block may hold anything.
    void (*weigh)(const float *probabilities, const float *value_scales, int rows, void *weights, float *units);

    // out[r][i] = out[r][i] * carry[r] + units[r] * sum over keys of weights[r][key] * value[key][i], i < width.
    void (*accumulate)(const void *weights, const float *units, const float *carry, int rows, const void *tile,
                       int width, float *out, size_t out_stride);
};

struct kernels {
    const char *name;
    int panel;
    const engine
        *floats; // for f16, q8_0 and q4_0: its tiles are float32, [width][tile_keys] keys, [tile_keys][width] values
    const engine *codes; // for turbo types

    // `count` rows of a float type (f16, q8_0, q4_0), `stride` bytes apart, to float32 [count][width].
    void (*load_rows)(ggml_type type, const char *rows, size_t stride, int count, int width, float *out);

    // float32 keys [pack_keys_each][width] into the float engine's key tile, as its first columns.
    void (*pack_keys)(const float *rows, int width, float *tile);

    // One tile of online softmax, in place: scores [rows][tile_keys] become probabilities relative to top[r], the
    // largest score of the row so far; sums [rows][sum_lanes] are kept up to date (a row's sum is that of its lanes),
    // and carry[r] is what earlier outputs must be multiplied by. added[r] belongs to every score of a row, before all
    // else. mask: NULL, or for each row tile_keys f16 values, multiplied by slope[r] and added; -inf hides a key. cap:
    // logit soft-cap, 0 for none.
    void (*softmax)(float *scores, int rows, const float *added, const uint16_t *const *mask, const float *slope,
                    float cap, float *top, float *sums, float *carry);
};

// The versions; avx2 also asks for FMA and F16C, avx512 for F, BW, DQ, VL and VNNI.
extern const kernels portable_kernels;
#if defined(__x86_64__)
extern const kernels avx2_kernels;
extern const kernels avx512_kernels;
#endif

// The version that goes with the codecs' path (turbo_simd_name), or the next one that this CPU has.
const kernels *active_kernels();

} // namespace turbo_fattn

#endif // TURBO_CPU_FATTN_KERNELS_H
