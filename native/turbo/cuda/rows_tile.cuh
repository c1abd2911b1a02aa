// What a warp of a team (attend_rows.cuh) does with an unpacked tile: scores, mask, softmax, values.

#pragma once

#include "rows_stage.cuh"

namespace turbo_cuda {

// The reference of a column's probabilities follows its maximum only when that has grown by a factor of 2^8: rescaling
// the output costs more than the bits. Probabilities are kept times 2^7 as f16, so they are at most 2^15, and normal
// numbers down to 2^-21 of the reference.
static constexpr float probability_shift = 7.0f, most_growth = 8.0f;

// Running state of the columns g and g + 8 of each tile. out[tile][c][i]: of column g (i < 2) or g + 8, the values 2t +
// (i & 1) of chunk c.
template <class shape> struct rows_state {
    float maximum[shape::tiles][2], sum[shape::tiles][2];
    float out[shape::tiles][shape::chunks][4];
};

// What a tile's runs add to its scores (run_products.cuh), in the unit of the products, which count `factor`. 16 tokens
// have one run. What run `first_run` and those behind it add follows the warp's scales, a row each.
template <class shape>
static __device__ __forceinline__ void begin_with_runs(float (&s)[shape::tiles][shape::keys / 8][4],
                                                       const float (&factor)[shape::tiles][2], const attend_params &p,
                                                       const float *scales, int first_run, int first) {
    const int g = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float unit = factor[m][h] > 0.0f ? __fdividef(1.0f, factor[m][h]) : 0.0f;
#pragma unroll
            for (int k = 0; k < shape::keys / 16; k++) {
                const int row = p.runs.run_of(first + 16 * k) - first_run + 1;
                const float x = unit * scales[row * rows_layout<shape>::scale_row(p) + 16 * m + 8 * h + g];
                s[m][2 * k][2 * h] = s[m][2 * k][2 * h + 1] = s[m][2 * k + 1][2 * h] = s[m][2 * k + 1][2 * h + 1] = x;
            }
        }
    }
}

// s[tile][n][i] +=: column g (i < 2) or g + 8, token 8n + 2t + (i & 1).
template <class shape>
static __device__ __forceinline__ void rows_scores(float (&s)[shape::tiles][shape::keys / 8][4], const uint4 *queries,
                                                   const uint8_t *k, const quarter_chunks<shape::head_dim> &chunks) {
#pragma unroll
    for (int i = 0; i < shape::steps / 2; i++) {
        uint4 a[2][shape::tiles], b[shape::keys / 8];
#pragma unroll
        for (int m = 0; m < shape::tiles; m++) {
            a[0][m] = queries[(m * shape::steps + 2 * i) * 32], a[1][m] = queries[(m * shape::steps + 2 * i + 1) * 32];
        }
#pragma unroll
        for (int n = 0; n < shape::keys / 8; n++) {
            b[n] = *reinterpret_cast<const uint4 *>(k + 8 * n * shape::row_bytes + chunks.at(i));
        }
#pragma unroll
        for (int n = 0; n < shape::keys / 8; n++) {
#pragma unroll
            for (int m = 0; m < shape::tiles; m++) {
                mma_f16(s[m][n], a[0][m], b[n].x, b[n].y);
            }
        }
#pragma unroll
        for (int n = 0; n < shape::keys / 8; n++) {
#pragma unroll
            for (int m = 0; m < shape::tiles; m++) {
                mma_f16(s[m][n], a[1][m], b[n].z, b[n].w);
            }
        }
    }
}

// Where a lane finds what a transposed load of two neighbouring chunks of 16 tokens takes from it: four bases, so that
// the rest of the address is a constant.
template <int head_dim> struct column_chunks {
    uint32_t base[4];

    __device__ __forceinline__ column_chunks() {
        const int lane = threadIdx.x & 31, token = lane & 15, right = lane >> 4, mask = chunk_mask(token);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            base[j] = token * head_dim * 2 + (((2 * j ^ (mask & 6)) + (right ^ (mask & 1))) << 4);
        }
    }
    // Chunks c and c + 1, c even.
    __device__ __forceinline__ uint32_t at(int c) const { return base[c / 2 % 4] + c / 8 * 128; }
};

// out += P x V; p[tile][n] as s of rows_scores.
template <class shape>
static __device__ __forceinline__ void rows_values(float (&out)[shape::tiles][shape::chunks][4],
                                                   const uint32_t (&p)[shape::tiles][shape::keys / 8][2],
                                                   const uint8_t *v, const column_chunks<shape::head_dim> &chunks) {
    const uint32_t base = shared_address(v);
#pragma unroll
    for (int k = 0; k < shape::keys / 16; k++) {
#pragma unroll
        for (int c = 0; c < shape::chunks; c += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, base + chunks.at(c) + 16 * k * shape::row_bytes);
#pragma unroll
            for (int m = 0; m < shape::tiles; m++) {
                const uint32_t a[4] = {p[m][2 * k][0], p[m][2 * k][1], p[m][2 * k + 1][0], p[m][2 * k + 1][1]};
                mma_f16(out[m][c], a, b[0], b[1]);
                mma_f16(out[m][c + 1], a, b[2], b[3]);
            }
        }
    }
}

// The mask of a warp's columns. Most tiles of a long cache are not masked at all: whether the next one is, is asked
// while this one is being worked on.
template <class shape> struct rows_mask {
    static constexpr int words = 4, lanes = shape::keys / 2, rows_a_word = 32 / lanes; // on their way
    const char *row; // of the warp's first column; null without a mask
    int rows;        // that its columns are of
    bool aligned;
    uint32_t ahead[words];

    __device__ __forceinline__ rows_mask(const attend_params &p, int column) {
        const int first = p.by_gqa.divide(min(column, p.n_columns - 1)),
                  last = p.by_gqa.divide(min(column + shape::columns, p.n_columns) - 1);
        row = p.mask == nullptr ? nullptr : p.mask + blockIdx.z * p.mask_stride_stream + first * p.mask_stride_row;
        rows = max(1, last - first + 1);
        aligned = ((reinterpret_cast<uintptr_t>(row) | p.mask_stride_row) & 3) == 0;
    }
    __device__ __forceinline__ bool quick() const { return row != nullptr && aligned && rows <= rows_a_word * words; }
    __device__ __forceinline__ void look(const attend_params &p, int first) {
        const int lane = threadIdx.x & 31;
        const char *at = row + (first + 2 * (lane % lanes)) * 2;
        const bool whole = first + shape::keys <= p.n_kv;
#pragma unroll
        for (int i = 0; i < words; i++) {
            const int r = rows_a_word * i + lane / lanes;
            ahead[i] = !whole ? 1u : r < rows ? *reinterpret_cast<const uint32_t *>(at + r * p.mask_stride_row) : 0u;
        }
    }
    __device__ __forceinline__ bool clear() const {
        return !__any_sync(0xffffffffu, (ahead[0] | ahead[1] | ahead[2] | ahead[3]) != 0);
    }
};

// Soft cap, mask and the end of the cache: scores become exponents to base 2. The tile begins at token `first`; column
// is the first one of the warp, mask_row its row of the mask or null.
template <class shape>
static __device__ __forceinline__ void limit_rows(float (&s)[shape::tiles][shape::keys / 8][4],
                                                  float (&factor)[shape::tiles][2], const attend_params &p,
                                                  const char *mask_row, int first, int end, int column) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int first_row = p.by_gqa.divide(min(column, p.n_columns - 1));
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = p.by_gqa.divide(min(column + 16 * m + 8 * h + g, p.n_columns - 1)) - first_row;
            const __half *at = reinterpret_cast<const __half *>(mask_row + row * p.mask_stride_row) + first;
#pragma unroll
            for (int i = 0; i < shape::keys / 4; i++) {
                const int token = 8 * (i / 2) + 2 * t + i % 2;
                float x = s[m][i / 2][2 * h + i % 2] * factor[m][h];
                if (p.soft_cap != 0.0f) {
                    x = p.soft_cap * tanhf(x);
                }
                if (first + token >= end) {
                    x = -INFINITY;
                } else if (mask_row != nullptr) {
                    x += log2_e * __half2float(at[token]);
                }
                s[m][i / 2][2 * h + i % 2] = x;
            }
            factor[m][h] = 1.0f;
        }
    }
}

// Scores times `factor` become probabilities, relative to the running maximum.
template <class shape>
static __device__ __forceinline__ void soften_rows(uint32_t (&p)[shape::tiles][shape::keys / 8][2],
                                                   const float (&s)[shape::tiles][shape::keys / 8][4],
                                                   const float (&factor)[shape::tiles][2], rows_state<shape> &state) {
    float top[shape::tiles][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = fmaxf(s[m][0][2 * h], s[m][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < shape::keys / 8; n++) {
                x = fmaxf(x, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            }
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2)) * factor[m][h];
            top[m][h] = fmaxf(x, state.maximum[m][h]);
            moved |= x > state.maximum[m][h] + most_growth;
        }
    }
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
        for (int m = 0; m < shape::tiles; m++) {
            float scale[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                scale[h] = exp2_fast(state.maximum[m][h] - top[m][h]);
                state.maximum[m][h] = top[m][h];
                state.sum[m][h] *= scale[h];
            }
#pragma unroll
            for (int c = 0; c < shape::chunks; c++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    state.out[m][c][i] *= scale[i / 2];
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float offset = probability_shift - state.maximum[m][h];
#pragma unroll
            for (int n = 0; n < shape::keys / 8; n++) {
                const float x = exp2_fast(fmaf(s[m][n][2 * h], factor[m][h], offset)),
                            y = exp2_fast(fmaf(s[m][n][2 * h + 1], factor[m][h], offset));
                state.sum[m][h] += x + y;
                p[m][n][h] = two_halves(x, y);
            }
        }
    }
}

} // namespace turbo_cuda
