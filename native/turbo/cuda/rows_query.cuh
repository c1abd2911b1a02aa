// The queries of teams of warps (attend_rows.cuh): rotated, as f16 operands.

#pragma once

#include "attend_query.cuh"
#include "rows_stage.cuh"

namespace turbo_cuda {

// Rotate a query and store it as f16, relative to its largest value, as an operand. Half a warp does one.
template <class shape>
static __device__ __forceinline__ void prepare_column(float (&x)[shape::blocks][shape::block_values / 16], bool rotate,
                                                      float unit, uint8_t *queries, float *scales, int column) {
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
    if (lane == 0) {
        scales[column] = top * unit;
    }
    const float factor = top > 0.0f ? __fdividef(1.0f, top) : 0.0f;
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

// The queries of all columns of the thread block.
template <class shape>
static __device__ __forceinline__ void prepare_columns(const attend_params &p, const rows_layout<shape> &layout,
                                                       int first_head, int first_column, int first_run, int n_runs) {
    constexpr int n = shape::block_values / 16;
    const int lane = threadIdx.x & 15, columns = p.warps_per_head * shape::columns;
    const bool rotate = p.k.format <= KV_TURBO4_TCQ;
    const float unit = p.score_scale * (rotate ? 1.0f / code_part : 1.0f);
    constexpr int depth = shape::blocks > 1 ? 2 : 4; // columns on their way at a time
    const int total = p.heads_per_block * columns;
#pragma unroll 1
    for (int start = threadIdx.x / 16; start < total; start += depth * rows_warps * 2) {
        float x[depth][shape::blocks][n];
#pragma unroll
        for (int d = 0; d < depth; d++) {
            const int i = start + d * rows_warps * 2, head_kv = i / columns,
                      column = first_column + i - head_kv * columns;
            const int row = p.by_gqa.divide(column), head = (first_head + head_kv) * p.gqa + column - row * p.gqa;
            const char *source = p.q + blockIdx.z * p.q_stride_stream + row * p.q_stride_row + head * p.q_stride_head;
            const bool real = i < total && column < p.n_columns;
#pragma unroll
            for (int b = 0; b < shape::blocks; b++) {
                const int first = b * shape::block_values + lane * n;
#pragma unroll
                for (int j = 0; j < n; j += 4) {
                    const float4 v = real ? *reinterpret_cast<const float4 *>(source + (first + j) * sizeof(float))
                                          : make_float4(0, 0, 0, 0);
                    x[d][b][j] = v.x, x[d][b][j + 1] = v.y, x[d][b][j + 2] = v.z, x[d][b][j + 3] = v.w;
                }
                if (p.q_scale != nullptr && real) {
#pragma unroll
                    for (int j = 0; j < n; j++) {
                        x[d][b][j] *= p.q_scale[head * shape::head_dim + first + j];
                    }
                }
            }
        }
#pragma unroll
        for (int d = 0; d < depth; d++) {
            const int i = start + d * rows_warps * 2, head_kv = i / columns, in_head = i - head_kv * columns;
            if (i < total) { // the same for a warp: both are even or odd
                if (p.run_room > 0) {
                    static_assert(shape::blocks == 1, "one product a column");
                    const int row = rows_layout<shape>::scale_row(p);
                    run_products<n>(x[d][0], p, (first_head + head_kv) * shape::head_dim + lane * n, first_run, n_runs,
                                    layout.scales(p, head_kv) + row + in_head, row);
                }
                prepare_column<shape>(x[d], rotate, unit, layout.queries(p, head_kv), layout.scales(p, head_kv),
                                      in_head);
            }
        }
    }
}

} // namespace turbo_cuda
