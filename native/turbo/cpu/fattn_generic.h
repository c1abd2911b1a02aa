// The kernels of CPU flash attention written once over a vector type V; fattn_portable.cpp, fattn_avx2.cpp and
// fattn_avx512.cpp each include this file and supply V. Everything here has internal linkage, so that no function built
// for one instruction set can be picked up by code built for another.
//
// V: width; type reg; zero, set1, load, store, load_i8, load_f16 (width values each); load_nibbles(from, shift) =
// (byte >> shift) & 15; add, sub, mul, fma(a, b, c) = a * b + c; fms = a * b - c; max(a, b), b if either is a NaN;
// select_gt(a, b, x, y) = a > b ? x : y; round (ties to even); scale2(p, n) = p * 2^n for integer n in [-126, 0]; top
// (over lanes); any_gt(a, b), any_nan(a): in any lane; transpose(reg[width]). panel, score_vectors, value_vectors:
// the shape of the register tiles.

#ifndef TURBO_CPU_FATTN_GENERIC_H
#define TURBO_CPU_FATTN_GENERIC_H

#include <string.h>

#include "fattn_kernels.h"

namespace turbo_fattn {
namespace {

// ---- reading float types --------------------------------------------------------------------------------------------

inline float half_to_float(uint16_t half) {
    // The exponent field moves over as it is and a multiplication corrects its bias, subnormals included.
    uint32_t bits = (uint32_t) (half & 0x7fff) << 13;
    const uint32_t bias_bits = (uint32_t) (127 + 112) << 23;
    float value, bias;
    memcpy(&value, &bits, sizeof value);
    memcpy(&bias, &bias_bits, sizeof bias);
    value *= bias;
    memcpy(&bits, &value, sizeof bits);
    if ((half & 0x7c00) == 0x7c00) {
        bits |= 0x7f800000;
    }
    bits |= (uint32_t) (half & 0x8000) << 16;
    memcpy(&value, &bits, sizeof value);
    return value;
}

template <class V> void load_half_row(const char *row, int width, float *out) {
    for (int i = 0; i < width; i += V::width) {
        V::store(out + i, V::load_f16((const uint16_t *) (const void *) (row + 2 * i)));
    }
}

template <class V> void load_q8_0_row(const char *row, int width, float *out) {
    for (int i = 0; i < width; i += 32, row += 34) {
        uint16_t scale;
        memcpy(&scale, row, sizeof scale);
        const auto factor = V::set1(half_to_float(scale));
        const int8_t *codes = (const int8_t *) (const void *) (row + 2);
        for (int j = 0; j < 32; j += V::width) {
            V::store(out + i + j, V::mul(factor, V::load_i8(codes + j)));
        }
    }
}

template <class V> void load_q4_0_row(const char *row, int width, float *out) {
    const auto eight = V::set1(8.0f);
    for (int i = 0; i < width; i += 32, row += 18) {
        uint16_t scale;
        memcpy(&scale, row, sizeof scale);
        const auto factor = V::set1(half_to_float(scale));
        for (int j = 0; j < 16; j += V::width) { // byte j: value j low, value j + 16 high
            const uint8_t *pairs = (const uint8_t *) row + 2 + j;
            V::store(out + i + j, V::mul(factor, V::sub(V::load_nibbles(pairs, 0), eight)));
            V::store(out + i + j + 16, V::mul(factor, V::sub(V::load_nibbles(pairs, 4), eight)));
        }
    }
}

template <class V> void load_rows(ggml_type type, const char *rows, size_t stride, int count, int width, float *out) {
    const auto load = type == GGML_TYPE_F16    ? load_half_row<V>
                      : type == GGML_TYPE_Q8_0 ? load_q8_0_row<V>
                                               : load_q4_0_row<V>;
    for (int key = 0; key < count; key++) {
        load(rows + key * stride, width, out + (size_t) key * width);
    }
}

// ---- packing tiles --------------------------------------------------------------------------------------------------

// Transpose [keys][width] into the first `keys` columns of [width][tile_keys]; load(key, i) reads V::width values of
// a key from i on.
template <class V, class Load> inline void pack_transposed(int keys, int width, float *tile, Load load) {
    for (int key = 0; key < keys; key += V::width) {
        for (int i = 0; i < width; i += V::width) {
            typename V::reg square[V::width];
            for (int j = 0; j < V::width; j++) {
                square[j] = load(key + j, i);
            }
            V::transpose(square);
            for (int j = 0; j < V::width; j++) {
                V::store(tile + (size_t) (i + j) * tile_keys + key, square[j]);
            }
        }
    }
}

template <class V> void pack_keys(const float *rows, int width, float *tile) {
    pack_transposed<V>(pack_keys_each, width, tile,
                       [=](int key, int i) { return V::load(rows + (size_t) key * width + i); });
}

template <class V> void pack_key_codes(const int8_t *codes, int width, void *tile) {
    pack_transposed<V>(tile_keys, width, (float *) tile,
                       [=](int key, int i) { return V::load_i8(codes + (size_t) key * width + i); });
}

template <class V> void pack_value_codes(const int8_t *codes, int width, void *tile) {
    for (int i = 0; i < tile_keys * width; i += V::width) {
        V::store((float *) tile + i, V::load_i8(codes + i));
    }
}

template <class V> void store_query(const float *query, int width, void *stored, float *scale) {
    memcpy(stored, query, (size_t) width * sizeof(float));
    *scale = 1.0f;
}

// ---- products -------------------------------------------------------------------------------------------------------

// Loops over a register tile: unrolled before the compiler decides what lives in registers.
#define TURBO_FATTN_UNROLL _Pragma("GCC unroll 8")

template <class V, int rows, int vectors>
inline void score_block(const float *const *queries, const float *tile, int width,
                        typename V::reg (&sums)[rows][vectors]) {
    TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
        TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) { sums[r][c] = V::zero(); }
    }
    for (int i = 0; i < width; i++, tile += tile_keys) {
        typename V::reg keys[vectors];
        TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) { keys[c] = V::load(tile + c * V::width); }
        TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
            const auto query = V::set1(queries[r][i]);
            TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) { sums[r][c] = V::fma(query, keys[c], sums[r][c]); }
        }
    }
}

template <class V, int rows>
void score_rows(const char *queries, size_t query_stride, const float *tile, int width, const float *key_scales,
                bool first, float *scores) {
    constexpr int vectors = V::score_vectors;
    const float *query[rows];
    TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
        query[r] = (const float *) (const void *) (queries + r * query_stride);
    }
    for (int key = 0; key < tile_keys; key += vectors * V::width) {
        typename V::reg sums[rows][vectors];
        score_block<V, rows, vectors>(query, tile + key, width, sums);
        TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
            TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) {
                const int at = key + c * V::width;
                float *out = scores + r * tile_keys + at;
                const auto base = first ? V::zero() : V::load(out);
                V::store(out, V::fma(sums[r][c], V::load(key_scales + at), base));
            }
        }
    }
}

template <class V, int rows, int vectors>
inline void accumulate_block(const float *weights, const float *carry, const float *tile, int width, float *out,
                             size_t out_stride) {
    typename V::reg sums[rows][vectors];
    TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
        const auto factor = V::set1(carry[r]);
        TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) {
            sums[r][c] = V::mul(factor, V::load(out + r * out_stride + c * V::width));
        }
    }
    for (int key = 0; key < tile_keys; key++, tile += width) {
        typename V::reg values[vectors];
        TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) { values[c] = V::load(tile + c * V::width); }
        TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
            const auto weight = V::set1(weights[r * tile_keys + key]);
            TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) { sums[r][c] = V::fma(weight, values[c], sums[r][c]); }
        }
    }
    TURBO_FATTN_UNROLL for (int r = 0; r < rows; r++) {
        TURBO_FATTN_UNROLL for (int c = 0; c < vectors; c++) {
            V::store(out + r * out_stride + c * V::width, sums[r][c]);
        }
    }
}

template <class V, int rows>
void accumulate_rows(const float *weights, const float *carry, const float *tile, int width, float *out,
                     size_t out_stride) {
    constexpr int step = V::value_vectors * V::width;
    int i = 0;
    for (; i + step <= width; i += step) {
        accumulate_block<V, rows, V::value_vectors>(weights, carry, tile + i, width, out + i, out_stride);
    }
    if (i < width) { // width is a multiple of 32, and so is what is left
        accumulate_block<V, rows, 32 / V::width>(weights, carry, tile + i, width, out + i, out_stride);
    }
}

// Call FUNCTION<V, rows> for a row count known only at run time.
#define TURBO_FATTN_DISPATCH(FUNCTION, V, rows, ...)                                                                   \
    switch (rows) {                                                                                                    \
        case 1: FUNCTION<V, 1>(__VA_ARGS__); break;                                                                    \
        case 2: FUNCTION<V, 2>(__VA_ARGS__); break;                                                                    \
        case 3: FUNCTION<V, 3>(__VA_ARGS__); break;                                                                    \
        case 4: FUNCTION<V, 4>(__VA_ARGS__); break;                                                                    \
        case 5: FUNCTION<V, 5>(__VA_ARGS__); break;                                                                    \
        default: FUNCTION<V, 6>(__VA_ARGS__); break;                                                                   \
    }

template <class V>
void score_panel(const void *queries, size_t query_stride, const float *, size_t, int rows, const void *tile, int width,
                 const float *key_scales, bool first, float *scores) {
    TURBO_FATTN_DISPATCH(score_rows, V, rows, (const char *) queries, query_stride, (const float *) tile, width,
                         key_scales, first, scores)
}

template <class V>
void accumulate_panel(const void *weights, const float *, const float *carry, int rows, const void *tile, int width,
                      float *out, size_t out_stride) {
    TURBO_FATTN_DISPATCH(accumulate_rows, V, rows, (const float *) weights, carry, (const float *) tile, width, out,
                         out_stride)
}

template <class V>
void weigh_panel(const float *probabilities, const float *value_scales, int rows, void *weights, float *units) {
    float *out = (float *) weights;
    for (int r = 0; r < rows; r++, probabilities += tile_keys, out += tile_keys) {
        for (int key = 0; key < tile_keys; key += V::width) {
            const auto p = V::load(probabilities + key);
            V::store(out + key, V::select_gt(p, V::zero(), V::mul(p, V::load(value_scales + key)), V::zero()));
        }
        units[r] = 1.0f;
    }
}

// ---- softmax --------------------------------------------------------------------------------------------------------

// e^x for x <= 0, 0 below -87 (where float32 runs out of normal numbers); a NaN stays one. Relative error 1e-7 +
// 1.4e-8 |x|.
template <class V> inline typename V::reg exp_negative(typename V::reg x) {
    const auto log2e = V::set1(0x1.715476p+0f);
    const auto n = V::round(V::mul(x, log2e));
    const auto f = V::fms(x, log2e, n); // in [-1/2, 1/2]; 2^f by a minimax polynomial
    auto p = V::set1(0x1.5bba14p-10f);
    p = V::fma(p, f, V::set1(0x1.3cea88p-7f));
    p = V::fma(p, f, V::set1(0x1.c6b752p-5f));
    p = V::fma(p, f, V::set1(0x1.ebf9bcp-3f));
    p = V::fma(p, f, V::set1(0x1.62e42ap-1f));
    p = V::fma(p, f, V::set1(1.0f));
    return V::select_gt(V::set1(-87.0f), x, V::zero(), V::scale2(p, n));
}

template <class V> inline typename V::reg soft_cap(typename V::reg x, float cap) {
    // tanh |x| = (1 - e) / (1 + e) with e = exp(-2 |x|); the sign comes back by comparison.
    const auto zero = V::zero();
    const auto one = V::set1(1.0f);
    const auto magnitude = V::select_gt(zero, x, V::sub(zero, x), x);
    const auto e = exp_negative<V>(V::mul(magnitude, V::set1(-2.0f)));
    const auto t = V::mul(V::set1(cap), V::div(V::sub(one, e), V::add(one, e)));
    return V::select_gt(zero, x, V::sub(zero, t), t);
}

// Soft-cap and mask of one row's scores, in place; returns their largest, lane by lane. `capped` is added before a cap.
template <class V>
inline typename V::reg shape_scores(float *scores, float capped, const uint16_t *mask, float slope, float cap) {
    const auto hidden = V::set1(-__builtin_inff());
    auto largest = hidden;
    for (int key = 0; key < tile_keys; key += V::width) {
        auto s = V::load(scores + key);
        if (cap != 0.0f) {
            s = soft_cap<V>(V::add(s, V::set1(capped)), cap);
        }
        if (mask) {
            const auto bias = V::load_f16(mask + key);
            s = V::select_gt(bias, hidden, V::fma(bias, V::set1(slope), s), hidden);
        }
        if (cap != 0.0f || mask) {
            V::store(scores + key, s);
        }
        largest = V::max(largest, s);
    }
    return largest;
}

template <class V> bool has_nan(const float *scores) {
    bool found = false;
    for (int key = 0; key < tile_keys; key += V::width) {
        found |= V::any_nan(V::load(scores + key));
    }
    return found;
}

template <class V>
void softmax_panel(float *scores, int rows, const float *added, const uint16_t *const *mask, const float *slope,
                   float cap, float *top, float *sums, float *carry) {
    for (int r = 0; r < rows; r++, scores += tile_keys, sums += sum_lanes) {
        // What all scores of a row have in common shifts their top instead, unless a cap bends it.
        const float common = cap != 0.0f ? 0.0f : added[r];
        const auto largest =
            V::add(shape_scores<V>(scores, added[r], mask ? mask[r] : NULL, slope[r], cap), V::set1(common));
        carry[r] = 1.0f;
        if (V::any_gt(largest, V::set1(top[r]))) { // rare after the first tiles
            const float now = V::top(largest);
            carry[r] = __builtin_expf(top[r] - now);
            top[r] = now;
        } else if (top[r] == -__builtin_inff() && !has_nan<V>(scores)) { // nothing seen yet and nothing here
            memset(scores, 0, tile_keys * sizeof(float));
            continue;
        }
        const auto shift = V::set1(top[r] - common);
        auto total = V::mul(V::load(sums), V::set1(carry[r]));
        for (int key = 0; key < tile_keys; key += V::width) {
            const auto p = exp_negative<V>(V::sub(V::load(scores + key), shift));
            V::store(scores + key, p);
            total = V::add(total, p);
        }
        V::store(sums, total);
    }
}

template <class V> constexpr engine float_engine() {
    return {sizeof(float),  store_query<V>, pack_key_codes<V>,  pack_value_codes<V>,
            score_panel<V>, weigh_panel<V>, accumulate_panel<V>};
}

} // namespace
} // namespace turbo_fattn

#endif // TURBO_CPU_FATTN_GENERIC_H
