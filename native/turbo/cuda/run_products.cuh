// Centres of runs of cells (turbo/kv_runs.h) in the attention: what the keys of a run lack is the same for all of them,
// so the product of a query with the run's row of the table is added to its scores of all cells of the run.
//
// The products of a stretch of the cache are computed once, before it is walked, by whoever has the queries in
// registers anyway: half a warp a query, in f32.

#pragma once

#include "attend_params.cuh"
#include "ptx.cuh"

namespace turbo_cuda {

static constexpr int longest_tile = 64; // of any attention kernel: it may begin in one run and end in the next

// Runs from `first` on of the tokens before `end`, and of those with which the last tile goes on.
static __device__ __forceinline__ int runs_touched(const attend_params &p, int first, int end) {
    return p.runs.run_of(end + longest_tile - 16) - first + 1;
}
// At most so many, of a stretch of `tokens`.
static inline int most_runs(const key_runs &runs, int tokens) {
    return runs.rows == nullptr ? 0 : runs.cells_each == 0 ? 1 : (tokens + longest_tile) / runs.cells_each + 2;
}

// Ask for the rows early: they come from device memory, and nobody writes them. By all warps of a block, a run each.
static __device__ __forceinline__ void prefetch_runs(const attend_params &p, int first_value, int values, int first_run,
                                                     int n_runs, int warps) {
    const int end = values * (int) sizeof(__half); // heads are multiples of 64 values, which is a line
#pragma unroll 1
    for (int run = threadIdx.x / 32; run < n_runs; run += warps) {
        const char *row = p.runs.row(first_run + run) + first_value * sizeof(__half);
#pragma unroll 1
        for (int at = (threadIdx.x & 31) * 128; at < end; at += 32 * 128) {
            prefetch_l2(row + at);
        }
    }
}

// Products of a query, of which each lane of half a warp has n values (before any rotation), with `n_runs` rows from
// `first_run` on; `first_value` is where the lane's values are in a row. As exponents to base 2 to `to`, in shared or
// global memory, `pitch` floats from run to run.
//
// `at_once` (4 or 8) of them are on their way together.
template <int at_once, int n>
static __device__ __forceinline__ void run_products_of(const float (&x)[n], const attend_params &p, int first_value,
                                                       int first_run, int n_runs, float *to, int pitch) {
    const int lane = threadIdx.x & 15;
#pragma unroll 1
    for (int run = 0; run < n_runs; run += at_once) {
        uint2 halves[at_once][n / 4];
        float sum[at_once] = {};
#pragma unroll
        for (int i = 0; i < at_once; i++) { // those behind the end are the last one's once more, and are not stored
            const uint2 *row =
                reinterpret_cast<const uint2 *>(p.runs.row(first_run + run + i) + first_value * sizeof(__half));
#pragma unroll
            for (int j = 0; j < n / 4; j++) {
                halves[i][j] = row[j];
            }
        }
#pragma unroll
        for (int i = 0; i < at_once; i++) {
#pragma unroll
            for (int j = 0; j < n / 4; j++) {
                const float2 front = __half22float2(reinterpret_cast<const __half2 &>(halves[i][j].x)),
                             back = __half22float2(reinterpret_cast<const __half2 &>(halves[i][j].y));
                sum[i] = fmaf(x[4 * j], front.x, fmaf(x[4 * j + 1], front.y, sum[i]));
                sum[i] = fmaf(x[4 * j + 2], back.x, fmaf(x[4 * j + 3], back.y, sum[i]));
            }
        }
        // Sums over 16 lanes: halves of the lanes take over half of them, and so on until each has one.
        int bit = 8;
#pragma unroll
        for (int keep = at_once / 2; keep > 0; keep /= 2, bit /= 2) {
#pragma unroll
            for (int i = 0; i < keep; i++) {
                const float sent = lane & bit ? sum[i] : sum[keep + i];
                sum[i] = (lane & bit ? sum[keep + i] : sum[i]) + __shfl_xor_sync(0xffffffffu, sent, bit);
            }
        }
#pragma unroll
        for (; bit > 0; bit /= 2) {
            sum[0] += __shfl_xor_sync(0xffffffffu, sum[0], bit);
        }
        constexpr int lanes = 16 / at_once; // that have the same one
        const int mine = run + lane / lanes;
        if (lane % lanes == 0 && mine < n_runs) {
            to[mine * pitch] = sum[0] * p.source_scale;
        }
    }
}

template <int n> static __device__ __forceinline__ void run_products(const float (&x)[n], const attend_params &p,
                                                                     int first_value, int first_run, int n_runs,
                                                                     float *to, int pitch) {
    if (n_runs > 4) {
        run_products_of<8>(x, p, first_value, first_run, n_runs, to, pitch);
    } else {
        run_products_of<4>(x, p, first_value, first_run, n_runs, to, pitch);
    }
}

} // namespace turbo_cuda
