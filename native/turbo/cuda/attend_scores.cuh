// From the products of a tile to its probabilities: what runs of cells add, soft cap, mask, the end of the cache, and
// the softmax as it runs along the cache.

#pragma once

#include "attend_layout.cuh"
#include "attend_tile.cuh"

namespace turbo_cuda {

// The mask of a tile, fetched one tile ahead where all columns share one row of it: lane l holds tokens 2l and 2l + 1.
struct mask_reader {
    const char *row; // of the first column; null without a mask
    bool ahead;      // one shared row, 4-byte aligned
    uint32_t next;

    template <class shape> __device__ __forceinline__ uint32_t load_pair(int first, int n_kv) const {
        const int key = 2 * (threadIdx.x & 31);
        const uint16_t *at = reinterpret_cast<const uint16_t *>(row) + first + key;
        if (key >= shape::keys || first + key >= n_kv) {
            return key >= shape::keys ? 0u : 0xfc00fc00u;
        }
        return first + key + 1 < n_kv ? *reinterpret_cast<const uint32_t *>(at) : at[0] | 0xfc000000u;
    }
};

// Hide tokens past the end of the cache, and those that are taken from elsewhere.
template <class shape> static __device__ __forceinline__ void hide_unreal(float (&s)[shape::slices][shape::tiles][4],
                                                                          const tile_limits &limits) {
    const int g = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int i = 0; i < 4 * shape::slices * shape::tiles; i++) {
        float &x = (&s[0][0][0])[i];
        x = limits.real(i / (4 * shape::tiles) * 16 + g + (i & 2) * 4) ? x : -INFINITY;
    }
}

// Scores become probabilities relative to the tile's own maximum; weight is what the tile counts in the running output.
// `run` is added to all scores of a column. Returns false if every score of the tile is masked.
template <class shape> static __device__ __forceinline__ bool soften(float (&s)[shape::slices][shape::tiles][4],
                                                                     const float (&run)[shape::tiles][2],
                                                                     column_state<shape> &state,
                                                                     float (&weight)[shape::tiles][2]) {
    float top[shape::tiles][2];
    bool any = false, moved = false;
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float x = lowest_score;
#pragma unroll
            for (int m = 0; m < shape::slices; m++) {
                x = fmaxf(x, fmaxf(s[m][n][c], s[m][n][c + 2]));
            }
#pragma unroll
            for (int step = 4; step <= 16; step *= 2) {
                x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
            }
            top[n][c] = x;
            any |= x > lowest_score;
            moved |= x + run[n][c] > state.maximum[n][c];
        }
    }
    if (!__any_sync(0xffffffffu, any)) {
        return false;
    }
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            float scale[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float maximum = fmaxf(state.maximum[n][c], top[n][c] + run[n][c]);
                scale[c] = exp2_fast(state.maximum[n][c] - maximum);
                state.maximum[n][c] = maximum;
                state.sum[n][c] *= scale[c];
            }
#pragma unroll
            for (int b = 0; b < shape::blocks; b++) {
#pragma unroll
                for (int r = 0; r < shape::outputs; r++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        state.out[b][r][n][i] *= scale[i & 1];
                    }
                }
                if constexpr (shape::counts_zeros) {
                    state.zeros[b][n][0] *= scale[0], state.zeros[b][n][1] *= scale[1];
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float total = 0.0f;
#pragma unroll
            for (int m = 0; m < shape::slices; m++) {
                s[m][n][c] = exp2_fast(s[m][n][c] - top[n][c]);
                s[m][n][c + 2] = exp2_fast(s[m][n][c + 2] - top[n][c]);
                total += s[m][n][c] + s[m][n][c + 2];
            }
            weight[n][c] = exp2_fast(top[n][c] + run[n][c] - state.maximum[n][c]);
            state.sum[n][c] = fmaf(total, weight[n][c], state.sum[n][c]);
        }
    }
    return true;
}

// What the runs of the tile that begins at token `first` add to its scores. Nearly always the tile has one: then `run`
// is what all scores of a column lack, and the scores are left alone. Otherwise a slice of 16 tokens has one. `runs`:
// the row of the warp's head for run `first_run`; those of the runs behind it follow.
template <class shape> static __device__ __forceinline__ void add_runs(float (&s)[shape::slices][shape::tiles][4],
                                                                       float (&run)[shape::tiles][2],
                                                                       const attend_params &p, const float *runs,
                                                                       int first_run, int first) {
    const float *mine = runs + 2 * (threadIdx.x & 3);
    const int one = p.runs.run_of(first);
    if (one == p.runs.run_of(first + shape::keys - 16) && p.soft_cap == 0.0f) {
        const float *row = mine + (one - first_run) * shared_layout<shape>::scale_row(p);
#pragma unroll
        for (int i = 0; i < shape::tiles * shape::blocks; i++) {
            const float2 x = *reinterpret_cast<const float2 *>(row + 8 * i);
            run[i / shape::blocks][0] += x.x, run[i / shape::blocks][1] += x.y;
        }
        return;
    }
#pragma unroll
    for (int m = 0; m < shape::slices; m++) {
        const float *row = mine + (p.runs.run_of(first + 16 * m) - first_run) * shared_layout<shape>::scale_row(p);
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
            for (int b = 0; b < shape::blocks; b++) {
                const float2 x = *reinterpret_cast<const float2 *>(row + 8 * (n * shape::blocks + b));
                s[m][n][0] += x.x, s[m][n][1] += x.y, s[m][n][2] += x.x, s[m][n][3] += x.y;
            }
        }
    }
}

// Runs, soft cap and mask for the tile that begins at token `first`; `pairs` as from mask_reader, `scales` those of the
// warp's head; `run` as of add_runs.
template <class shape> static __device__ __forceinline__ void
limit_scores(float (&s)[shape::slices][shape::tiles][4], float (&run)[shape::tiles][2], const attend_params &p,
             const mask_reader &mask, uint32_t pairs, int first, int first_column, const float *scales, int first_run) {
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    if (p.bends) { // asked once: what follows the products is not to be cut into pieces
        if (p.run_room > 0) {
            add_runs<shape>(s, run, p, scales + shape::query_rows * shared_layout<shape>::scale_row(p), first_run,
                            first);
        }
        if (p.soft_cap != 0.0f) {
#pragma unroll
            for (int i = 0; i < 4 * shape::slices * shape::tiles; i++) {
                float &x = (&s[0][0][0])[i];
                x = p.soft_cap * tanhf(x);
            }
        }
    }
    if (mask.ahead) { // most tiles of a long cache are not masked at all
        if (!__any_sync(0xffffffffu, pairs != 0)) {
            return;
        }
#pragma unroll
        for (int i = 0; i < 2 * shape::slices; i++) {
            const uint32_t pair = __shfl_sync(0xffffffffu, pairs, 4 * i + (g >> 1));
            const float bias = log2_e * __half2float(__ushort_as_half((unsigned short) (g & 1 ? pair >> 16 : pair)));
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
                s[i / 2][n][i % 2 * 2] += bias;
                s[i / 2][n][i % 2 * 2 + 1] += bias;
            }
        }
        return;
    }
    if (mask.row != nullptr) {
        const int first_row = p.by_gqa.divide(first_column), rest = p.n_kv - first;
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int column = min(first_column + 8 * n + 2 * t + c, p.n_columns - 1);
                const __half *at = reinterpret_cast<const __half *>(mask.row + (p.by_gqa.divide(column) - first_row) *
                                                                                   p.mask_stride_row) +
                                   first;
#pragma unroll
                for (int i = 0; i < 2 * shape::slices; i++) {
                    s[i / 2][n][i % 2 * 2 + c] += log2_e * (8 * i + g < rest ? __half2float(at[8 * i + g]) : -INFINITY);
                }
            }
        }
    }
}

} // namespace turbo_cuda
