// The newest tokens, straight from the f32 rows that are being encoded at the same time.
//
// One thread block of each (heads, columns) takes them in before it walks its stretch of the cache: their scores in
// f32, and their values rotated and in codebook steps, so that they add up with what is decoded.

#pragma once

#include "attend_walk.cuh"

namespace turbo_cuda {

// Value i (of n in a row) of lane l in a block: l*n + i.
template <int n>
static __device__ __forceinline__ void load_lane(const char *row, int first, float (&x)[n]) {
    const float *at = reinterpret_cast<const float *>(row) + first + (threadIdx.x & 31) * n;
#pragma unroll
    for (int i = 0; i < n; i += 2) {
        const float2 v = *reinterpret_cast<const float2 *>(at + i);
        x[i] = v.x, x[i + 1] = v.y;
    }
}

// x = f(x, vector), if there is a vector.
template <int n, class function>
static __device__ __forceinline__ void apply(const float *vector, int first, float (&x)[n], function f) {
    if (vector != nullptr) {
        float y[n];
        load_lane<n>(reinterpret_cast<const char *>(vector), first, y);
#pragma unroll
        for (int i = 0; i < n; i++) {
            x[i] = f(x[i], y[i]);
        }
    }
}

// Scores of one key against all columns of the thread block, as base-2 exponents.
template <class shape>
static __device__ __forceinline__ void score_newest(const attend_params &p, const char *row, int token, int head_kv,
                                                    int first_column, float *scores) {
    constexpr int n = shape::block_values / 32;
    float key[shape::blocks][n];
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
        const int first = head_kv * shape::head_dim + b * shape::block_values;
        load_lane<n>(row, first, key[b]);
        apply<n>(p.pending.factor, first, key[b], [](float x, float y) { return x * y; });
        apply<n>(p.pending.centre, first, key[b], [](float x, float y) { return x - y; });
        // instead of the queries
        apply<n>(p.q_scale, first + head_kv * (p.gqa - 1) * shape::head_dim, key[b],
                 [](float x, float y) { return x * y; });
    }
    // all queries are on their way at the same time
    float score[shape::columns];
#pragma unroll
    for (int c = 0; c < shape::columns; c++) {
        const int column = min(first_column + c, p.n_columns - 1), query_row = p.by_gqa.divide(column),
                  head = head_kv * p.gqa + column - query_row * p.gqa;
        const char *query = p.q + query_row * p.q_stride_row + head * p.q_stride_head;
        score[c] = 0.0f;
#pragma unroll
        for (int b = 0; b < shape::blocks; b++) {
            float q[n];
            load_lane<n>(query, b * shape::block_values, q);
#pragma unroll
            for (int i = 0; i < n; i++) {
                score[c] = fmaf(q[i], key[b][i], score[c]);
            }
        }
    }
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
#pragma unroll
        for (int c = 0; c < shape::columns; c++) {
            score[c] += __shfl_xor_sync(0xffffffffu, score[c], step);
        }
    }
    const int lane = threadIdx.x & 31;
    float mine = 0.0f; // lane c takes column c
#pragma unroll
    for (int c = 0; c < shape::columns; c++) {
        mine = lane == c ? score[c] : mine;
    }
    if (lane < shape::columns) {
        const int query_row = p.by_gqa.divide(min(first_column + lane, p.n_columns - 1));
        mine *= p.source_scale;
        if (p.soft_cap != 0.0f) {
            mine = p.soft_cap * tanhf(mine);
        }
        if (p.mask != nullptr) {
            const __half *mask = reinterpret_cast<const __half *>(p.mask + query_row * p.mask_stride_row);
            mine += log2_e * __half2float(mask[token]);
        }
        scores[lane] = mine;
    }
}

template <class shape>
static __device__ __forceinline__ void rotate_newest(const attend_params &p, const char *row, int head_kv, float unit,
                                                     float *values) {
    constexpr int n = shape::block_values / 32;
    const int at = (threadIdx.x & 31) * n;
    const uint32_t signs = sign_word<shape::block_values>(at / 32) >> (at % 32);
#pragma unroll 1
    for (int b = 0; b < shape::blocks; b++) {
        float x[n];
        load_lane<n>(row, head_kv * shape::head_dim + b * shape::block_values, x);
#pragma unroll
        for (int i = 0; i < n; i++) {
            x[i] = flip_sign(x[i], signs, i);
        }
        hadamard_lanes<n, 32>(x);
#pragma unroll
        for (int i = 0; i < n; i++) {
            values[b * shape::block_values + at + i] = x[i] * unit;
        }
    }
}

// A warp a (head, row); the last warps first, since the first ones have queries to prepare.
template <class shape>
static __device__ __forceinline__ void prepare_newest(const attend_params &p, const shared_layout<shape> &layout,
                                                      int first_token, int first_head, int first_column, int warps) {
    const float unit = 1.0f / (shape::block_values * value_unit<shape::block_values>(p.v.format));
    for (int i = warps - 1 - threadIdx.x / 32; i < p.heads_per_block * p.pending.n_rows; i += warps) {
        const int head = i / p.pending.n_rows, row = i - head * p.pending.n_rows;
        score_newest<shape>(p, p.pending.source[0] + row * p.pending.source_stride[0], first_token + row,
                            first_head + head, first_column, layout.newest_scores(p) + i * shape::columns);
        rotate_newest<shape>(p, p.pending.source[1] + row * p.pending.source_stride[1], first_head + head, unit,
                             layout.newest_values(p) + i * shape::head_dim);
    }
}

// Begin a warp's running state with the newest tokens of its head.
template <class shape>
static __device__ __forceinline__ void take_newest(const attend_params &p, const shared_layout<shape> &layout, int head,
                                                   column_state<shape> &state) {
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3, rows = p.pending.n_rows;
    const float *values = layout.newest_values(p) + head * rows * shape::head_dim,
                *scores = layout.newest_scores(p) + head * rows * shape::columns;
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float *mine = scores + 8 * n + 2 * t + c;
            float top = lowest_score;
            for (int row = 0; row < rows; row++) {
                top = fmaxf(top, mine[row * shape::columns]);
            }
            state.maximum[n][c] = top;
            for (int row = 0; row < rows; row++) {
                const float counts = exp2_fast(mine[row * shape::columns] - top), weight = counts * output_unit(p);
                state.sum[n][c] += g == 0 ? counts : 0.0f; // the lanes of a column are added up in the end
#pragma unroll
                for (int b = 0; b < shape::blocks; b++) {
#pragma unroll
                    for (int r = 0; r < shape::values_per_lane / 4; r++) {
                        const float2 v = *reinterpret_cast<const float2 *>(
                            values + row * shape::head_dim + b * shape::block_values +
                            shape::position(g >> 1, r, 2 * (g & 1)));
                        state.out[b][r][n][c] = fmaf(weight, v.x, state.out[b][r][n][c]);
                        state.out[b][r][n][c + 2] = fmaf(weight, v.y, state.out[b][r][n][c + 2]);
                    }
                }
            }
        }
    }
}

} // namespace turbo_cuda
