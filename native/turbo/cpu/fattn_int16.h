// The int16 engine of CPU flash attention (AVX2, AVX-512): codes of turbo types times 16-bit queries or weights, summed
// exactly in 32 bits. More products an instruction than float32. Included by fattn_avx2.cpp and fattn_avx512.cpp, which
// give their V of fattn_generic.h these as well:
//   ints; int_zero, int_load, int_set1 (width lanes of 32 bits); to_float(ints);
//   store_rounded(to, reg): width int16, to nearest; add_products(sum, a, b): sum += the two products of each lane's
//   pairs; pack_key_pairs and pack_value_pairs.
//
// A step of a product takes two values at once, so tiles hold pairs of int16 in 32-bit lanes:
//   keys   [width / 2][tile_keys]: pair 2t = values 4t and 4t + 2 of a key, pair 2t + 1 = values 4t + 1 and 4t + 3
//   values [tile_keys / 2][width]: pair j = keys 2j and 2j + 1
// Largest sums: 128 * 127 * 32767 for a score, 64 * 127 * 32767 for an output: both below 2^31.

#ifndef TURBO_CPU_FATTN_INT16_H
#define TURBO_CPU_FATTN_INT16_H

#include "fattn_generic.h"

namespace turbo_fattn {
namespace {

constexpr float int16_top = 32767.0f;

// The factor that brings `largest` to int16_top; 0 when there is nothing to bring there.
inline float int16_factor(float largest) { return largest < 1e-34f ? 0.0f : int16_top / largest; }

template <class V> void store_query_int16(const float *query, int width, void *stored, float *scale) {
    auto largest = V::zero();
    bool broken = false;
    for (int i = 0; i < width; i += V::width) {
        const auto x = V::load(query + i);
        broken |= V::any_nan(x);
        largest = V::max(largest, V::max(x, V::sub(V::zero(), x)));
    }
    const float top = V::top(largest);
    const auto factor = V::set1(int16_factor(top));
    int16_t *out = (int16_t *) stored;
    for (int i = 0; i < width; i += V::width) {
        V::store_rounded(out + i, V::mul(V::load(query + i), factor));
    }
    for (int i = 0; i < width; i += 4) { // values 0 1 2 3 become 0 2 1 3, the order of the pairs
        const int16_t held = out[i + 1];
        out[i + 1] = out[i + 2];
        out[i + 2] = held;
    }
    *scale = broken ? __builtin_nanf("") : top / int16_top; // integers cannot carry a NaN
}

template <class V> void pack_key_codes_int16(const int8_t *codes, int width, void *tile) {
    V::pack_key_pairs(codes, width, (int32_t *) tile);
}

template <class V> void pack_value_codes_int16(const int8_t *codes, int width, void *tile) {
    V::pack_value_pairs(codes, width, (int32_t *) tile);
}

// sums[r][c] = products of `steps` pairs: left[r] holds them one after the other, the tile `stride` lanes apart.
template <class V, int rows, int vectors>
inline void sum_pairs(const int32_t *const *left, const int32_t *tile, int steps, size_t stride,
                      typename V::ints (&sums)[rows][vectors]) {
    TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
        TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) { sums[r][c] = V::int_zero(); }
    }
    for (int i = 0; i < steps; i++, tile += stride) {
        typename V::ints right[vectors];
        TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) { right[c] = V::int_load(tile + V::width * c); }
        TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
            const auto pair = V::int_set1(left[r][i]);
            TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) { V::add_products(sums[r][c], pair, right[c]); }
        }
    }
}

template <class V, int rows>
void score_rows_int16(const char *queries, size_t query_stride, const float *query_scales, size_t scale_stride,
                      const int32_t *tile, int width, const float *key_scales, bool first, float *scores) {
    constexpr int vectors = V::score_vectors;
    const int32_t *query[rows];
    TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
        query[r] = (const int32_t *) (const void *) (queries + r * query_stride);
    }
    for (int key = 0; key < tile_keys; key += vectors * V::width) {
        typename V::ints sums[rows][vectors];
        sum_pairs<V, rows, vectors>(query, tile + key, width / 2, tile_keys, sums);
        TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
            const auto query_scale = V::set1(query_scales[r * scale_stride]);
            TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) {
                const int at = key + c * V::width;
                float *out = scores + r * tile_keys + at;
                const auto base = first ? V::zero() : V::load(out);
                V::store(out, V::fma(V::to_float(sums[r][c]), V::mul(query_scale, V::load(key_scales + at)), base));
            }
        }
    }
}

template <class V, int rows>
void accumulate_rows_int16(const int32_t *weights, const float *units, const float *carry, const int32_t *tile,
                           int width, float *out, size_t out_stride) {
    constexpr int vectors = V::value_vectors;
    const int32_t *left[rows];
    TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) { left[r] = weights + r * (tile_keys / 2); }
    for (int i = 0; i < width; i += vectors * V::width) { // a block has 64 or 128 values
        typename V::ints sums[rows][vectors];
        sum_pairs<V, rows, vectors>(left, tile + i, tile_keys / 2, (size_t) width, sums);
        TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
            const auto unit = V::set1(units[r]);
            const auto factor = V::set1(carry[r]);
            TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) {
                float *to = out + r * out_stride + i + c * V::width;
                V::store(to, V::fma(V::to_float(sums[r][c]), unit, V::mul(factor, V::load(to))));
            }
        }
    }
}

template <class V>
void score_panel_int16(const void *queries, size_t query_stride, const float *query_scales, size_t scale_stride,
                       int rows, const void *tile, int width, const float *key_scales, bool first, float *scores) {
    TURBO_FATTN_DISPATCH(score_rows_int16, V, rows, (const char *) queries, query_stride, query_scales, scale_stride,
                         (const int32_t *) tile, width, key_scales, first, scores)
}

template <class V>
void accumulate_panel_int16(const void *weights, const float *units, const float *carry, int rows, const void *tile,
                            int width, float *out, size_t out_stride) {
    TURBO_FATTN_DISPATCH(accumulate_rows_int16, V, rows, (const int32_t *) weights, units, carry,
                         (const int32_t *) tile, width, out, out_stride)
}

template <class V>
void weigh_panel_int16(const float *probabilities, const float *value_scales, int rows, void *weights, float *units) {
    constexpr int vectors = tile_keys / V::width;
    int16_t *out = (int16_t *) weights;
    for (int r = 0; r < rows; r++, probabilities += tile_keys, out += tile_keys) {
        typename V::reg weight[vectors];
        auto largest = V::zero();
        auto poison = V::zero(); // becomes a NaN if a weight is one
        TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) {
            const auto p = V::load(probabilities + c * V::width);
            weight[c] = V::select_gt(p, V::zero(), V::mul(p, V::load(value_scales + c * V::width)), V::zero());
            poison = V::fma(weight[c], V::zero(), poison);
            largest = V::max(largest, weight[c]);
        }
        const float top = V::top(largest);
        const auto factor = V::set1(int16_factor(top));
        TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) {
            V::store_rounded(out + c * V::width, V::mul(weight[c], factor));
        }
        units[r] = V::any_nan(poison) ? __builtin_nanf("") : top / int16_top;
    }
}

template <class V> constexpr engine int16_engine() {
    return {sizeof(int16_t),      store_query_int16<V>, pack_key_codes_int16<V>,  pack_value_codes_int16<V>,
            score_panel_int16<V>, weigh_panel_int16<V>, accumulate_panel_int16<V>};
}

} // namespace
} // namespace turbo_fattn

#endif // TURBO_CPU_FATTN_INT16_H
