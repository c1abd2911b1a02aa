// The queries of teams of warps (attend_rows.cuh): rotated, as f16 operands.

#pragma once

#include "attend_query.cuh"
#include "rows_stage.cuh"

namespace turbo_cuda {

// Rotate a query of which half a warp has block_values / 16 neighbouring values a lane; its largest value.
template <class shape> static __device__ __forceinline__ float
rotate_column(float (&x)[shape::blocks][shape::block_values / 16], bool rotate) {
    constexpr int n = shape::block_values / 16;
    const int lane = threadIdx.x & 15;
    float top = 0.0f;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
        if (rotate) {
            const uint32_t signs = sign_word<shape::block_values>(lane * n / 32) >> (lane * n % 32);
#pragma unroll
            for (int j = 0; j < n; j++) {
                x[b][j] = flip_sign(x[b][j], signs, j);
            }
            hadamard_lanes<n, 16>(x[b]);
        }
#pragma unroll
        for (int j = 0; j < n; j++) {
            top = fmaxf(top, fabsf(x[b][j]));
        }
    }
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    }
    return top;
}

// Store a rotated query as f16, relative to its largest value, as an operand.
template <class shape> static __device__ __forceinline__ void
store_column(const float (&x)[shape::blocks][shape::block_values / 16], float factor, uint8_t *queries, int column) {
    constexpr int n = shape::block_values / 16;
    const int lane = threadIdx.x & 15;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
#pragma unroll
        for (int j = 0; j < n; j += 4) {
            const int value = lane * n + j, step = b * shape::parts * 2 + shape::plain::register_of(value);
            uint32_t *to =
                reinterpret_cast<uint32_t *>(queries) +
                ((column / 16 * shape::steps + step) * 32 + column % 8 * 4 + shape::plain::quarter_of(value)) * 4 +
                column / 8 % 2;
            to[0] = two_halves(x[b][j] * factor, x[b][j + 1] * factor);
            to[2] = two_halves(x[b][j + 2] * factor, x[b][j + 3] * factor);
        }
    }
}

// Where the products of queries with the runs of a stretch go (run_products.cuh): of column i of head number n with run
// r to to[n * head_pitch + r * run_pitch + i].
struct run_sums {
    int first_run, n_runs;
    float *to;
    int head_pitch, run_pitch;
};

// Queries of `columns` columns each of several KV heads, by half warps `half` of `halves`. Column i of `total` is
// column i % columns of the head first_head + i / columns. store(number of the head, column, x, factor, scale) puts x
// times `factor` where the products want it; a unit of a score then counts `scale`.
template <class shape, class store_type>
static __device__ __forceinline__ void prepare_columns(const attend_params &p, int first_head, int first_column,
                                                       int columns, int total, int half, int halves,
                                                       const run_sums &sums, const store_type &store) {
    constexpr int n = shape::block_values / 16;
    const int lane = threadIdx.x & 15;
    const bool rotate = p.k.format <= KV_TURBO4_TCQ;
    const float unit = p.score_scale * (rotate ? 1.0f / code_part : 1.0f);
    using values = float[shape::blocks][n];
    const auto load = [&](values &x, int i) {
        const int number = i / columns, column = first_column + i - number * columns;
        const int row = p.by_gqa.divide(column), head = (first_head + number) * p.gqa + column - row * p.gqa;
        const char *source = p.q + blockIdx.z * p.q_stride_stream + row * p.q_stride_row + head * p.q_stride_head;
        const bool real = i < total && column < p.n_columns;
#pragma unroll
        for (int b = 0; b < shape::blocks; b++) {
            const int first = b * shape::block_values + lane * n;
#pragma unroll
            for (int j = 0; j < n; j += 4) {
                float4 v = make_float4(0, 0, 0, 0), scale = make_float4(1, 1, 1, 1);
                if (real) {
                    v = *reinterpret_cast<const float4 *>(source + (first + j) * sizeof(float));
                    if (p.q_scale != nullptr) {
                        scale = *reinterpret_cast<const float4 *>(p.q_scale + head * shape::head_dim + first + j);
                    }
                }
                x[b][j] = v.x * scale.x, x[b][j + 1] = v.y * scale.y;
                x[b][j + 2] = v.z * scale.z, x[b][j + 3] = v.w * scale.w;
            }
        }
    };
    // One at a time, the next one on its way: code that runs once takes as long as it is to fetch.
    values next;
    load(next, half);
#pragma unroll 1
    for (int i = half; i < total; i += halves) { // as often for both halves of a warp
        values x;
#pragma unroll
        for (int j = 0; j < shape::blocks * n; j++) {
            (&x[0][0])[j] = (&next[0][0])[j];
        }
        load(next, i + halves);
        const int number = i / columns, in_head = i - number * columns;
        if (p.run_room > 0) {
            static_assert(shape::blocks == 1, "one product a column");
            run_products<n>(x[0], p, (first_head + number) * shape::head_dim + lane * n, sums.first_run, sums.n_runs,
                            sums.to + number * sums.head_pitch + in_head, sums.run_pitch);
        }
        const float top = rotate_column<shape>(x, rotate);
        store(number, in_head, x, top > 0.0f ? __fdividef(1.0f, top) : 0.0f, top * unit);
    }
}

} // namespace turbo_cuda
