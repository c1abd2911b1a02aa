// Putting partial results together: groups of a thread block, then thread blocks along the cache.

#pragma once

#include "attend_newest.cuh"

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
    const int row = column / p.gqa, head = head_kv * p.gqa + column % p.gqa;
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

// Leave a warp's state in shared memory: out[column][parked_row] and (maximum, sum) of each column.
template <class shape>
static __device__ __forceinline__ void park(const column_state<shape> &state, float *out, float *ml) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float sum = state.sum[n][c];
#pragma unroll
            for (int step = 4; step <= 16; step *= 2) {
                sum += __shfl_xor_sync(0xffffffffu, sum, step);
            }
            const int column = 8 * n + 2 * t + c;
            if (g == 0) {
                ml[2 * column] = state.maximum[n][c];
                ml[2 * column + 1] = sum;
            }
#pragma unroll
            for (int b = 0; b < shape::blocks; b++) {
#pragma unroll
                for (int r = 0; r < shape::values_per_lane / 4; r++) {
                    const int value = b * shape::block_values + shape::position(g >> 1, r, 2 * (g & 1));
                    *reinterpret_cast<float2 *>(out + column * shape::parked_row + shape::parked_at(value)) =
                        make_float2(state.out[b][r][n][c], state.out[b][r][n][c + 2]);
                }
            }
        }
    }
}

// Merge the groups of the block; write the output itself if the cache is not split, else a partial result.
// parked: [group][head][column][parked_row], ml: [group][head][column][2]. One warp takes 32*4 values at a time.
template <class shape>
static __device__ __forceinline__ void merge_groups(const attend_params &p, const float *parked, const float *ml,
                                                    int first_head, int first_column, int warps) {
    constexpr int lanes = shape::head_dim < 128 ? shape::head_dim / 4 : 32, passes = shape::head_dim / (4 * lanes);
    constexpr int depth = 4;
    const int lane = threadIdx.x & 31, columns = p.heads_per_block * shape::columns;
    for (int unit = threadIdx.x / 32; unit < columns * passes; unit += warps) {
        const int head_column = unit / passes, first_value = (unit % passes * lanes + lane % lanes) * 4;
        const int head = head_column / shape::columns, column = first_column + head_column % shape::columns;
        if (column >= p.n_columns) {
            continue;
        }
        const float *state = ml + 2 * head_column,
                    *values = parked + head_column * shape::parked_row + shape::parked_at(first_value);
        float maximum = lowest_score, sum = 0.0f;
        for (int i = lane; i < p.groups; i += 32) { // at most 16 groups: a lane each
            maximum = state[2 * i * columns];
        }
        const float mine = maximum;
#pragma unroll
        for (int step = 1; step < 16; step *= 2) {
            maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
        }
        const float weight = exp2_fast(mine - maximum);
        sum = lane < p.groups ? state[2 * lane * columns + 1] * weight : 0.0f;
#pragma unroll
        for (int step = 1; step < 16; step *= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        }
        maximum = __shfl_sync(0xffffffffu, maximum, 0);
        sum = __shfl_sync(0xffffffffu, sum, 0);
        float4 v = make_float4(0, 0, 0, 0);
#pragma unroll 1
        for (int first = 0; first < p.groups; first += depth) {
#pragma unroll
            for (int i = 0; i < depth; i++) {
                const float w = __shfl_sync(0xffffffffu, weight, first + i);
                if (first + i < p.groups) {
                    const float4 x =
                        *reinterpret_cast<const float4 *>(values + (first + i) * columns * shape::parked_row);
                    v.x = fmaf(x.x, w, v.x), v.y = fmaf(x.y, w, v.y), v.z = fmaf(x.z, w, v.z), v.w = fmaf(x.w, w, v.w);
                }
            }
        }
        if (p.splits == 1) {
            store_output<shape>(p, blockIdx.z, first_head + head, column, first_value, v, maximum, sum);
        } else {
            const int64_t at =
                ((int64_t) (blockIdx.z * p.n_head_kv + first_head + head) * p.n_columns + column) * p.splits +
                blockIdx.x;
            *reinterpret_cast<float4 *>(p.partial + at * shape::head_dim + first_value) = v;
            if (first_value == 0) {
                *reinterpret_cast<float2 *>(p.partial_ml + 2 * at) = make_float2(maximum, sum);
            }
        }
    }
}

template <class shape, int warps>
static __global__ void __launch_bounds__(warps * 32, 1) attend_kernel(const __grid_constant__ attend_params p) {
    extern __shared__ __align__(16) uint8_t shared[];
    const shared_layout<shape> layout = {shared};
    const int warp = threadIdx.x / 32, group = warp / p.heads_per_block, head = warp - group * p.heads_per_block;
    const bool active = group < p.groups;
    const int head_chunk = p.column_blocks == 1 ? blockIdx.y : blockIdx.y / p.column_blocks;
    const int first_head = head_chunk * p.heads_per_block;
    const int first_column = (blockIdx.y - head_chunk * p.column_blocks) * shape::columns;
    const int tile_begin = blockIdx.x * p.split_tiles + min((int) blockIdx.x, p.split_rest);
    const int tile_end = tile_begin + p.split_tiles + ((int) blockIdx.x < p.split_rest ? 1 : 0),
              tile = tile_begin + group;

    item_ring ring = {};
    ring.slots = layout.ring(p, group);
    ring.arrived = layout.barriers(p, group), ring.released = ring.arrived + ring_slots;
    ring.slot_bytes = p.slot_bytes, ring.rows = p.copy_rows;
    ring.thread = head * 32 + (threadIdx.x & 31), ring.threads = p.heads_per_block * 32;
    ring.barrier_id = 1 + group;
    ring.first_round = true;
    if (active && ring.thread == 0) {
        ring.init_barriers();
    }
    const char *k = p.k.data + blockIdx.z * p.k.stride_stream + first_head * p.k.stride_head;
    const char *v = p.v.data + blockIdx.z * p.v.stride_stream + first_head * p.v.stride_head;
    mask_reader mask = {};
    if (p.mask != nullptr) {
        mask.row = p.mask + blockIdx.z * p.mask_stride_stream + first_column / p.gqa * p.mask_stride_row;
        mask.ahead = p.n_rows == 1 && (reinterpret_cast<uintptr_t>(mask.row) & 3) == 0;
    }
    if constexpr (shape::any_format) {
        fill_pair_table(p.k.format, layout.k_table(p), threadIdx.x, warps * 32);
        if (p.v.format != p.k.format) {
            fill_pair_table(p.v.format, layout.v_table(p), threadIdx.x, warps * 32);
        }
    }
    __syncthreads(); // the barriers are ready

    const pending_rows pending(p.pending);
    if (threadIdx.x == 0) {
        *layout.pending() = pending;
    }
    // The first query values and the first mask go ahead of the bulk of the cache: they are on the critical path.
    query_loader<shape> queries(p, first_head, first_column, threadIdx.x / 32);
    if (active) {
        const int count = tile < tile_end ? min(shape::keys, p.n_kv - tile * shape::keys) : 0;
        if (mask.ahead && count > 0) {
            mask.next = mask.load_pair<shape>(tile * shape::keys, p.n_kv);
        }
        ring.fetch(p.k, k, tile * shape::keys, count);
        ring.fetch(p.v, v, tile * shape::keys, count);
    }
    queries.prepare_all(p, layout, warps);
    const bool newest = shape::any_format && pending.any() && blockIdx.x == 0;
    if (newest) {
        prepare_newest<shape>(p, layout, pending.low, first_head, first_column, warps);
    }
    __syncthreads();
    let_next_kernel_start();

    column_state<shape> state = {};
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
        state.maximum[n][0] = state.maximum[n][1] = lowest_score;
    }
    if (newest && group == 0) {
        take_newest<shape>(p, layout, head, state);
    }
    if (active) {
        walk<shape>(p, ring, k, v, mask, state, tile, tile_end, head, first_column, layout);
    }
    __syncthreads(); // everything staged has been used: the memory now holds the groups' results
    const int columns = p.heads_per_block * shape::columns;
    float *parked = reinterpret_cast<float *>(shared), *ml = parked + p.groups * columns * shape::parked_row;
    if (active) {
        const int at = warp * shape::columns;
        park<shape>(state, parked + at * shape::parked_row, ml + 2 * at);
    }
    __syncthreads();
    merge_groups<shape>(p, parked, ml, first_head, first_column, warps);
}

// One thread block a column: merge the splits, warp by warp, then un-rotate and store.
template <class shape, int warps>
static __global__ void __launch_bounds__(warps * 32) combine_kernel(const __grid_constant__ attend_params p) {
    constexpr int lanes = shape::head_dim < 128 ? shape::head_dim / 4 : 32, passes = shape::head_dim / (4 * lanes),
                  rows = 32 / lanes;
    __shared__ float4 gathered[warps][passes][32];
    __shared__ float2 states[warps][rows]; // (maximum, sum)
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int64_t first = ((int64_t) (blockIdx.z * p.n_head_kv + blockIdx.y) * p.n_columns + blockIdx.x) * p.splits;
    wait_for_previous_kernel();
    let_next_kernel_start();

    float4 v[passes] = {};
    float maximum = lowest_score, sum = 0.0f;
    constexpr int depth = passes > 1 ? 4 : 9; // partial results a warp has on their way at a time
    for (int start = warp * rows + lane / lanes; start < p.splits; start += depth * warps * rows) {
        float2 state[depth];
        float4 x[depth][passes];
#pragma unroll
        for (int i = 0; i < depth; i++) {
            const int split = start + i * warps * rows;
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
#pragma unroll
    for (int pass = 0; pass < passes; pass++) {
        gathered[warp][pass][lane] = v[pass];
    }
    if (lane % lanes == 0) {
        states[warp][lane / lanes] = make_float2(maximum, sum);
    }
    __syncthreads();
    if (warp >= passes) {
        return;
    }
    maximum = lowest_score, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < warps * rows; i++) {
        maximum = fmaxf(maximum, states[i / rows][i % rows].x);
    }
    float4 total = make_float4(0, 0, 0, 0);
#pragma unroll
    for (int i = 0; i < warps * rows; i++) {
        const float weight = exp2_fast(states[i / rows][i % rows].x - maximum);
        const float4 x = gathered[i / rows][warp][lane % lanes + i % rows * lanes];
        sum = fmaf(states[i / rows][i % rows].y, weight, sum);
        total.x = fmaf(x.x, weight, total.x), total.y = fmaf(x.y, weight, total.y);
        total.z = fmaf(x.z, weight, total.z), total.w = fmaf(x.w, weight, total.w);
    }
    store_output<shape>(p, blockIdx.z, blockIdx.y, blockIdx.x, (warp * lanes + lane % lanes) * 4, total, maximum, sum);
}

} // namespace turbo_cuda
