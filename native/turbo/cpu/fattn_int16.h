// The int16 engine of CPU flash attention (AVX-512 VNNI): codes of turbo types times 16-bit queries or weights, summed
// exactly in 32 bits. Twice the products an instruction of float32. Included by fattn_avx512.cpp only.
//
// A step of a product takes two values at once, so tiles hold pairs of int16 in 32-bit lanes:
//   keys   [width / 2][tile_keys]: pair 2t = values 4t and 4t + 2 of a key, pair 2t + 1 = values 4t + 1 and 4t + 3
//   values [tile_keys / 2][width]: pair j = keys 2j and 2j + 1
// Largest sums: 128 * 127 * 32767 for a score, 64 * 127 * 32767 for an output: both below 2^31.

#ifndef TURBO_CPU_FATTN_INT16_H
#define TURBO_CPU_FATTN_INT16_H

namespace turbo_fattn {
namespace {

constexpr float int16_top = 32767.0f;

// The factor that brings `largest` to int16_top; 0 when there is nothing to bring there.
inline float int16_factor(float largest) {
    return largest < 1e-34f ? 0.0f : int16_top / largest;
}

inline __m512i bytes_of(const void *from) {
    return _mm512_loadu_si512(from);
}

void store_query_int16(const float *query, int width, void *stored, float *scale) {
    __m512 largest = _mm512_setzero_ps();
    __mmask16 broken = 0;
    for (int i = 0; i < width; i += 16) {
        const __m512 x = _mm512_loadu_ps(query + i);
        broken |= _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
        largest = _mm512_max_ps(largest, _mm512_abs_ps(x));
    }
    const float top = _mm512_reduce_max_ps(largest);
    const __m512 factor = _mm512_set1_ps(int16_factor(top));
    // Values 0 1 2 3 of each four become 0 2 1 3, the order of the pairs.
    for (int i = 0; i < width; i += 16) {
        const __m512i rounded = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(query + i), factor));
        _mm256_storeu_si256((__m256i *) (void *) ((int16_t *) stored + i),
                            _mm512_cvtsepi32_epi16(_mm512_shuffle_epi32(rounded, (_MM_PERM_ENUM) 0xd8)));
    }
    *scale = broken ? __builtin_nanf("") : top / int16_top; // integers cannot carry a NaN
}

void pack_key_codes_int16(const int8_t *codes, int width, void *tile) {
    for (int key = 0; key < tile_keys; key += 16) {
        for (int i = 0; i < width; i += 16) {
            // rows[j], lane l: values i..i+15 of key 4l + j; four 32-bit transposes a lane bring the keys side by side.
            const int8_t *from = codes + (size_t) key * width + i;
            __m512i rows[4];
            for (int j = 0; j < 4; j++) {
                const int8_t *row = from + (size_t) j * width;
                __m512i r = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *) (const void *) row));
                r = _mm512_mask_broadcast_i32x4(r, 0x00f0, _mm_loadu_si128((const __m128i *) (const void *) (row + 4 * width)));
                r = _mm512_mask_broadcast_i32x4(r, 0x0f00, _mm_loadu_si128((const __m128i *) (const void *) (row + 8 * width)));
                rows[j] = _mm512_mask_broadcast_i32x4(r, 0xf000, _mm_loadu_si128((const __m128i *) (const void *) (row + 12 * width)));
            }
            const __m512i a = _mm512_unpacklo_epi32(rows[0], rows[1]);
            const __m512i b = _mm512_unpackhi_epi32(rows[0], rows[1]);
            const __m512i c = _mm512_unpacklo_epi32(rows[2], rows[3]);
            const __m512i d = _mm512_unpackhi_epi32(rows[2], rows[3]);
            const __m512i fours[4] = {_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c), _mm512_unpacklo_epi64(b, d),
                                      _mm512_unpackhi_epi64(b, d)};
            int32_t *out = (int32_t *) tile + (size_t) (i / 2) * tile_keys + key;
            for (int t = 0; t < 4; t++, out += 2 * tile_keys) {
                _mm512_storeu_si512(out, _mm512_srai_epi16(_mm512_slli_epi16(fours[t], 8), 8));
                _mm512_storeu_si512(out + tile_keys, _mm512_srai_epi16(fours[t], 8));
            }
        }
    }
}

void pack_value_codes_int16(const int8_t *codes, int width, void *tile) {
    alignas(64) static const int16_t interleave[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                                       8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i low = _mm512_load_si512(interleave);
    const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
    int32_t *out = (int32_t *) tile;
    for (int key = 0; key < tile_keys; key += 2, codes += 2 * width) {
        for (int i = 0; i < width; i += 32, out += 32) {
            const __m512i a = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *) (const void *) (codes + i)));
            const __m512i b = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *) (const void *) (codes + width + i)));
            _mm512_storeu_si512(out, _mm512_permutex2var_epi16(a, low, b));
            _mm512_storeu_si512(out + 16, _mm512_permutex2var_epi16(a, high, b));
        }
    }
}

// sums[r][c] = products of `steps` pairs: left[r] holds them one after the other, the tile `stride` lanes apart.
template <int rows, int vectors>
inline void sum_pairs(const int32_t *const *left, const int32_t *tile, int steps, size_t stride, __m512i (&sums)[rows][vectors]) {
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < vectors; c++) {
            sums[r][c] = _mm512_setzero_si512();
        }
    }
    for (int i = 0; i < steps; i++, tile += stride) {
        __m512i right[vectors];
        for (int c = 0; c < vectors; c++) {
            right[c] = bytes_of(tile + 16 * c);
        }
        for (int r = 0; r < rows; r++) {
            const __m512i pair = _mm512_set1_epi32(left[r][i]);
            for (int c = 0; c < vectors; c++) {
                sums[r][c] = _mm512_dpwssd_epi32(sums[r][c], pair, right[c]);
            }
        }
    }
}

template <class V, int rows>
void score_rows_int16(const char *queries, size_t query_stride, const float *query_scales, size_t scale_stride, const int32_t *tile,
                      int width, const float *key_scales, bool first, float *scores) {
    const int32_t *query[rows];
    for (int r = 0; r < rows; r++) {
        query[r] = (const int32_t *) (const void *) (queries + r * query_stride);
    }
    __m512i sums[rows][4];
    sum_pairs<rows, 4>(query, tile, width / 2, tile_keys, sums);
    for (int c = 0; c < 4; c++) {
        const __m512 key_scale = _mm512_loadu_ps(key_scales + 16 * c);
        for (int r = 0; r < rows; r++) {
            float *out = scores + r * tile_keys + 16 * c;
            const __m512 base = first ? _mm512_setzero_ps() : _mm512_loadu_ps(out);
            const __m512 scale = _mm512_mul_ps(key_scale, _mm512_set1_ps(query_scales[r * scale_stride]));
            _mm512_storeu_ps(out, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][c]), scale, base));
        }
    }
}

template <int rows, int vectors>
inline void accumulate_block_int16(const int32_t *const *weights, const float *units, const float *carry, const int32_t *tile, int width,
                                   float *out, size_t out_stride) {
    __m512i sums[rows][vectors];
    sum_pairs<rows, vectors>(weights, tile, tile_keys / 2, width, sums);
    for (int r = 0; r < rows; r++, out += out_stride) {
        const __m512 unit = _mm512_set1_ps(units[r]);
        const __m512 factor = _mm512_set1_ps(carry[r]);
        for (int c = 0; c < vectors; c++) {
            const __m512 kept = _mm512_mul_ps(factor, _mm512_loadu_ps(out + 16 * c));
            _mm512_storeu_ps(out + 16 * c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[r][c]), unit, kept));
        }
    }
}

template <class V, int rows>
void accumulate_rows_int16(const int32_t *weights, const float *units, const float *carry, const int32_t *tile, int width, float *out,
                           size_t out_stride) {
    const int32_t *left[rows];
    for (int r = 0; r < rows; r++) {
        left[r] = weights + r * (tile_keys / 2);
    }
    for (int i = 0; i < width; i += 64) { // a block has 64 or 128 values
        accumulate_block_int16<rows, 4>(left, units, carry, tile + i, width, out + i, out_stride);
    }
}

void score_panel_int16(const void *queries, size_t query_stride, const float *query_scales, size_t scale_stride, int rows,
                       const void *tile, int width, const float *key_scales, bool first, float *scores) {
    TURBO_FATTN_DISPATCH(score_rows_int16, void, rows, (const char *) queries, query_stride, query_scales, scale_stride,
                         (const int32_t *) tile, width, key_scales, first, scores)
}

void accumulate_panel_int16(const void *weights, const float *units, const float *carry, int rows, const void *tile, int width,
                            float *out, size_t out_stride) {
    TURBO_FATTN_DISPATCH(accumulate_rows_int16, void, rows, (const int32_t *) weights, units, carry, (const int32_t *) tile, width,
                         out, out_stride)
}

void weigh_panel_int16(const float *probabilities, const float *value_scales, int rows, void *weights, float *units) {
    int16_t *out = (int16_t *) weights;
    for (int r = 0; r < rows; r++, probabilities += tile_keys, out += tile_keys) {
        __m512 weight[tile_keys / 16];
        __m512 largest = _mm512_setzero_ps();
        __mmask16 broken = 0;
        for (int c = 0; c < tile_keys / 16; c++) {
            const __m512 p = _mm512_loadu_ps(probabilities + 16 * c);
            const __mmask16 seen = _mm512_cmp_ps_mask(p, _mm512_setzero_ps(), _CMP_GT_OQ);
            weight[c] = _mm512_maskz_mul_ps(seen, p, _mm512_loadu_ps(value_scales + 16 * c));
            broken |= _mm512_cmp_ps_mask(weight[c], weight[c], _CMP_UNORD_Q);
            largest = _mm512_max_ps(largest, weight[c]);
        }
        const float top = _mm512_reduce_max_ps(largest);
        const __m512 factor = _mm512_set1_ps(int16_factor(top));
        for (int c = 0; c < tile_keys / 16; c++) {
            _mm256_storeu_si256((__m256i *) (void *) (out + 16 * c),
                                _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(weight[c], factor))));
        }
        units[r] = broken ? __builtin_nanf("") : top / int16_top;
    }
}

constexpr engine int16_engine() {
    return {sizeof(int16_t),   store_query_int16, pack_key_codes_int16,   pack_value_codes_int16,
            score_panel_int16, weigh_panel_int16, accumulate_panel_int16};
}

} // namespace
} // namespace turbo_fattn

#endif // TURBO_CPU_FATTN_INT16_H
