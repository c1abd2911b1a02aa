// Putting partial results together: groups of a thread block, then thread blocks along the cache.

#pragma once

#include "attend_walk.cuh"

namespace turbo_cuda {

// Undo the rotation of four consecutive values a lane: Walsh-Hadamard over the block, then the signs.
template <int block_values> static __device__ __forceinline__ float4 unrotate(float4 v, int first_value) {
    float x[4] = {v.x + v.y, v.x - v.y, v.z + v.w, v.z - v.w};
    float y[4] = {x[0] + x[2], x[1] + x[3], x[0] - x[2], x[1] - x[3]};
#pragma unroll
    for (int bit = 1; bit < block_values / 4; bit *= 2) {
        const float sign = (threadIdx.x & bit) ? -1.0f : 1.0f;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            y[i] = fmaf(sign, y[i], __shfl_xor_sync(0xffffffffu, y[i], bit));
        }
    }
    const int in_block = first_value % block_values;
    const uint32_t signs = sign_word<block_values>(in_block / 32) >> (in_block % 32);
    return make_float4(flip_sign(y[0], signs, 0), flip_sign(y[1], signs, 1), flip_sign(y[2], signs, 2),
                       flip_sign(y[3], signs, 3));
}

// Normalise, un-rotate and store four values of a column: (maximum, sum) as accumulated, sink included here.
template <class shape>
static __device__ __forceinline__ void store_output(const attend_params &p, int stream, int head_kv, int column,
                                                    int first_value, float4 v, float maximum, float sum) {
    const int row = p.by_gqa.divide(column), head = head_kv * p.gqa + column - row * p.gqa;
    float factor = 1.0f;
    if (p.sinks) {
        const float sink = p.sinks[head] * log2_e, top = fmaxf(maximum, sink);
        factor = exp2_fast(maximum - top);
        sum = fmaf(sum, factor, exp2_fast(sink - top));
    }
    factor = sum > 0.0f ? factor * value_unit<shape::block_values>(p.v.format) / sum : 0.0f;
    if (p.v.format <= KV_TURBO4_TCQ) {
        v = unrotate<shape::block_values>(v, first_value);
    }
    const int64_t at =
        ((int64_t) (stream * p.n_rows + row) * (p.n_head_kv * p.gqa) + head) * shape::head_dim + first_value;
    *reinterpret_cast<float4 *>(p.out + at) = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

// The same for this thread block's share of the cache, to be merged with the others'.
template <class shape>
static __device__ __forceinline__ void store_partial(const attend_params &p, int head_kv, int column, int first_value,
                                                     float4 v, float maximum, float sum) {
    const int64_t at =
        ((int64_t) (blockIdx.z * p.n_head_kv + head_kv) * p.n_columns + column) * p.splits + blockIdx.x;
    *reinterpret_cast<float4 *>(p.partial + at * shape::head_dim + first_value) = v;
    if (first_value == 0) {
        *reinterpret_cast<float2 *>(p.partial_ml + 2 * at) = make_float2(maximum, sum);
    }
}

// The maxima of a warp's columns, for the other groups.
template <class shape> static __device__ __forceinline__ void show_maxima(const column_state<shape> &state, float *to) {
    const int t = threadIdx.x & 3;
    if ((threadIdx.x & 31) < 4) {
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            *reinterpret_cast<float2 *>(to + 8 * n + 2 * t) = make_float2(state.maximum[n][0], state.maximum[n][1]);
        }
    }
}

// Which value of a head the lanes of row g have in out[b][r][.][0] and [1], the one behind it in [2] and [3]; -1: none.
template <class shape> static __device__ __forceinline__ int output_value(int b, int r, int g, int skew) {
    if constexpr (shape::v_format == KV_Q8_0) {
        return q8_value_of(r, g, skew);
    } else {
        return b * shape::block_values + shape::position(g >> 1, r, 2 * (g & 1));
    }
}

// Leave a warp's results in shared memory, relative to the maximum of all groups, so that they only have to be added.
template <class shape>
static __device__ __forceinline__ void park(const attend_params &p, const shared_layout<shape> &layout, int group,
                                            int head, const column_state<shape> &state) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int heads = p.heads_per_block, place = (group * heads + head) * shape::columns;
    float *out = layout.parked() + place * shape::parked_row;
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
        const int column = 8 * n + 2 * t;
        const float *maxima = layout.maxima() + head * shape::columns + column;
        float top[2] = {lowest_score, lowest_score};
#pragma unroll 4
        for (int i = 0; i < p.groups; i++) {
            const float2 x = *reinterpret_cast<const float2 *>(maxima + i * heads * shape::columns);
            top[0] = fmaxf(top[0], x.x), top[1] = fmaxf(top[1], x.y);
        }
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float moved = exp2_fast(state.maximum[n][c] - top[c]), factor = moved * (1.0f / output_unit(p));
            float sum = state.sum[n][c];
#pragma unroll
            for (int step = 4; step <= 16; step *= 2) {
                sum += __shfl_xor_sync(0xffffffffu, sum, step);
            }
            if (g == 0) {
                layout.sums(p)[place + column + c] = sum * moved;
                if (group == 0) {
                    layout.tops(p)[head * shape::columns + column + c] = top[c];
                }
            }
#pragma unroll
            for (int b = 0; b < shape::blocks; b++) {
                const float zero = shape::counts_zeros ? state.zeros[b][n][c] : 0.0f;
#pragma unroll
                for (int r = 0; r < shape::outputs; r++) {
                    const int value = output_value<shape>(b, r, g, state.skew);
                    if (value < 0) {
                        continue;
                    }
                    *reinterpret_cast<float2 *>(out + (column + c) * shape::parked_row + shape::parked_at(value)) =
                        make_float2((state.out[b][r][n][c] - zero) * factor,
                                    (state.out[b][r][n][c + 2] - zero) * factor);
                }
            }
        }
    }
}

// Add up the groups of the block; write the output itself if the cache is not split, else a partial result. One warp
// takes 32*4 values at a time.
template <class shape>
static __device__ __forceinline__ void merge_groups(const attend_params &p, const shared_layout<shape> &layout,
                                                    int first_head, int first_column, int warps) {
    constexpr int lanes = shape::head_dim < 128 ? shape::head_dim / 4 : 32, passes = shape::head_dim / (4 * lanes);
    const int lane = threadIdx.x & 31, columns = p.heads_per_block * shape::columns;
    for (int unit = threadIdx.x / 32; unit < columns * passes; unit += warps) {
        const int head_column = unit / passes, first_value = (unit % passes * lanes + lane % lanes) * 4;
        const int head = head_column / shape::columns, column = first_column + head_column % shape::columns;
        if (column >= p.n_columns) {
            continue;
        }
        const float *values = layout.parked() + head_column * shape::parked_row + shape::parked_at(first_value),
                    *sums = layout.sums(p) + head_column;
        const float maximum = layout.tops(p)[head_column];
        float sum = 0.0f;
        float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 4
        for (int i = 0; i < p.groups; i++) {
            const float4 x = *reinterpret_cast<const float4 *>(values + i * columns * shape::parked_row);
            sum += sums[i * columns];
            v.x += x.x, v.y += x.y, v.z += x.z, v.w += x.w;
        }
        if (p.splits == 1) {
            store_output<shape>(p, blockIdx.z, first_head + head, column, first_value, v, maximum, sum);
        } else if (p.cluster) { // where the first group's results were
            if constexpr (lanes < 32) {
                __syncwarp(); // other lanes have read the same
            }
            if (lane < lanes) {
                *reinterpret_cast<float4 *>(layout.parked() + head_column * shape::parked_row +
                                            shape::parked_at(first_value)) = v;
                if (first_value == 0) {
                    *reinterpret_cast<float2 *>(layout.merged(p) + 2 * head_column) = make_float2(maximum, sum);
                }
            }
        } else {
            store_partial<shape>(p, first_head + head, column, first_value, v, maximum, sum);
        }
    }
}

// A result that is not normalised: four values of a lane, and the column's maximum and sum.
struct partial_result {
    float4 v;
    float maximum, sum;
};

// Four values of a column from `count` parts, at most `most`: state_of(part) is its maximum and sum.
template <int most, class state_type, class values_type>
static __device__ __forceinline__ partial_result merge_parts(int count, const state_type &state_of,
                                                             const values_type &values_of) {
    partial_result r = {make_float4(0, 0, 0, 0), lowest_score, 0.0f};
    float2 states[most];
    float4 x[most];
#pragma unroll
    for (int i = 0; i < most; i++) {
        states[i] = make_float2(lowest_score, 0.0f), x[i] = make_float4(0, 0, 0, 0);
        if (i < count) {
            states[i] = state_of(i);
            x[i] = values_of(i);
        }
        r.maximum = fmaxf(r.maximum, states[i].x);
    }
#pragma unroll
    for (int i = 0; i < most; i++) {
        const float weight = exp2_fast(states[i].x - r.maximum);
        r.sum = fmaf(states[i].y, weight, r.sum);
        r.v.x = fmaf(x[i].x, weight, r.v.x), r.v.y = fmaf(x[i].y, weight, r.v.y);
        r.v.z = fmaf(x[i].z, weight, r.v.z), r.v.w = fmaf(x[i].w, weight, r.v.w);
    }
    return r;
}

static constexpr int most_in_cluster = 8;              // what every device with clusters allows
static constexpr int most_parts = most_in_cluster / 2; // thread blocks that share the splits of a column

// Merge the thread blocks of a cluster, which have one head: each takes some columns of all.
template <class shape>
static __device__ __forceinline__ void merge_cluster(const attend_params &p, const shared_layout<shape> &layout,
                                                     int head_kv, int first_column, int warps) {
    constexpr int lanes = shape::head_dim < 128 ? shape::head_dim / 4 : 32, passes = shape::head_dim / (4 * lanes);
    cluster_barrier();
    const int lane = threadIdx.x & 31, columns = min(shape::columns, p.n_columns - first_column);
    for (int unit = blockIdx.x + p.splits * (threadIdx.x / 32); unit < columns * passes; unit += p.splits * warps) {
        const int column = unit / passes, first_value = (unit % passes * lanes + lane % lanes) * 4;
#ifdef TURBO_CLUSTERS
        const float *values = layout.parked() + column * shape::parked_row + shape::parked_at(first_value),
                    *state = layout.merged(p) + 2 * column; // the same places in all blocks
        const partial_result r = merge_parts<most_in_cluster>(
            p.splits, [&](int i) { return cluster_load_2(cluster_address(state, i)); },
            [&](int i) { return cluster_load_4(cluster_address(values, i)); });
        store_output<shape>(p, blockIdx.z, head_kv, first_column + column, first_value, r.v, r.maximum, r.sum);
#endif
    }
    cluster_barrier(); // nobody ends while another one still reads here
}

// A column: merge the splits, warp by warp, then un-rotate and store. combine_parts thread blocks share the splits of a
// column; if there are several, they are a cluster.
template <class shape, int warps>
static __global__ void __launch_bounds__(warps * 32) combine_kernel(const __grid_constant__ attend_params p) {
    constexpr int lanes = shape::head_dim < 128 ? shape::head_dim / 4 : 32, passes = shape::head_dim / (4 * lanes),
                  rows = 32 / lanes;
    __shared__ float4 gathered[warps][passes][32];
    __shared__ float maxima[warps * rows], sums[warps * rows];
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    __shared__ float4 part_values[most_parts][passes][32]; // of the first part: what all have found
    __shared__ float2 part_states[most_parts];
    const int column = p.combine_parts == 1 ? blockIdx.x : blockIdx.x / p.combine_parts,
              part = blockIdx.x - column * p.combine_parts, stride = p.combine_parts * warps * rows;
    const int64_t first = ((int64_t) (blockIdx.z * p.n_head_kv + blockIdx.y) * p.n_columns + column) * p.splits;
    if (p.combine_parts > 1) {
        cluster_arrive(); // waited for before anything is written to the first part: it has begun
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    float4 v[passes] = {};
    float maximum = lowest_score, sum = 0.0f;
    constexpr int depth = passes > 1 ? 4 : warps == 16 ? 9 : 5; // partial results a warp has on their way at a time
    for (int start = (part * warps + warp) * rows + lane / lanes; start < p.splits; start += depth * stride) {
        float2 state[depth];
        float4 x[depth][passes];
#pragma unroll
        for (int i = 0; i < depth; i++) {
            const int split = start + i * stride;
            const int64_t at = first + min(split, p.splits - 1);
            state[i] = *reinterpret_cast<const float2 *>(p.partial_ml + 2 * at);
#pragma unroll
            for (int pass = 0; pass < passes; pass++) {
                x[i][pass] = *reinterpret_cast<const float4 *>(p.partial + at * shape::head_dim +
                                                               (pass * lanes + lane % lanes) * 4);
            }
            state[i].x = split < p.splits ? state[i].x : -INFINITY;
        }
        float top = maximum;
#pragma unroll
        for (int i = 0; i < depth; i++) {
            top = fmaxf(top, state[i].x);
        }
        const float rescale = exp2_fast(maximum - top);
        maximum = top;
        sum *= rescale;
#pragma unroll
        for (int pass = 0; pass < passes; pass++) {
            v[pass].x *= rescale, v[pass].y *= rescale, v[pass].z *= rescale, v[pass].w *= rescale;
        }
#pragma unroll
        for (int i = 0; i < depth; i++) {
            const float weight = exp2_fast(state[i].x - maximum);
            sum = fmaf(state[i].y, weight, sum);
#pragma unroll
            for (int pass = 0; pass < passes; pass++) {
                v[pass].x = fmaf(x[i][pass].x, weight, v[pass].x), v[pass].y = fmaf(x[i][pass].y, weight, v[pass].y);
                v[pass].z = fmaf(x[i][pass].z, weight, v[pass].z), v[pass].w = fmaf(x[i][pass].w, weight, v[pass].w);
            }
        }
    }
    if (lane % lanes == 0) {
        maxima[warp * rows + lane / lanes] = maximum;
    }
    __syncthreads();
    float top = lowest_score;
#pragma unroll
    for (int i = 0; i < warps * rows; i++) {
        top = fmaxf(top, maxima[i]);
    }
    const float factor = exp2_fast(maximum - top);
#pragma unroll
    for (int pass = 0; pass < passes; pass++) {
        gathered[warp][pass][lane] =
            make_float4(v[pass].x * factor, v[pass].y * factor, v[pass].z * factor, v[pass].w * factor);
    }
    if (lane % lanes == 0) {
        sums[warp * rows + lane / lanes] = sum * factor;
    }
    __syncthreads();
    partial_result r = {make_float4(0, 0, 0, 0), top, 0.0f};
    if (warp < passes) {
#pragma unroll
        for (int i = 0; i < warps * rows; i++) {
            const float4 x = gathered[i / rows][warp][lane % lanes + i % rows * lanes];
            r.sum += sums[i];
            r.v.x += x.x, r.v.y += x.y, r.v.z += x.z, r.v.w += x.w;
        }
    }
    // Results go to the first part, so that the others may end: the attention that comes next needs their
    // multiprocessors.
#ifdef TURBO_CLUSTERS
    if (p.combine_parts > 1) {
        cluster_wait();
        if (warp < passes) {
            cluster_store_4(cluster_address(&part_values[part][warp][lane], 0), r.v);
        }
        if (threadIdx.x == 0) {
            cluster_store_2(cluster_address(&part_states[part], 0), make_float2(top, r.sum));
        }
        cluster_arrive();
        if (part > 0) {
            return;
        }
        cluster_wait();
        if (warp < passes) {
            r = merge_parts<most_parts>(
                p.combine_parts, [&](int i) { return part_states[i]; },
                [&](int i) { return part_values[i][warp][lane]; });
        }
    }
#endif
    if (warp < passes) {
        store_output<shape>(p, blockIdx.z, blockIdx.y, column, (warp * lanes + lane % lanes) * 4, r.v, r.maximum,
                            r.sum);
    }
}

} // namespace turbo_cuda
