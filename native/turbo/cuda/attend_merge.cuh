// Putting partial results together: groups of a thread block, then thread blocks along the cache.

#pragma once

#include "attend_kernel.cuh"

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
    return make_float4(flip_sign(y[0], signs, 0), flip_sign(y[1], signs, 1), flip_sign(y[2], signs, 2), flip_sign(y[3], signs, 3));
}

// What one unit of the accumulated V codes is worth in the output, the 1/sqrt(block) of the rotation included.
template <int block_values> static __device__ __forceinline__ float value_unit(int format) {
    switch (format) {
        case KV_TURBO2: return block_values == 128 ? TURBO_UNIT_128_turbo2 : TURBO_UNIT_64_turbo2;
        case KV_TURBO3: return block_values == 128 ? TURBO_UNIT_128_turbo3 : TURBO_UNIT_64_turbo3;
        case KV_TURBO4: return block_values == 128 ? TURBO_UNIT_128_turbo4 : TURBO_UNIT_64_turbo4;
        default: return 1.0f;
    }
}

// Normalise, un-rotate and store four values of a column: (maximum, sum) as accumulated, sink included here.
template <class shape>
static __device__ __forceinline__ void store_output(const attend_params &p, int stream, int head_kv, int column, int first_value, float4 v,
                                                    float maximum, float sum) {
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
    const int64_t at = ((int64_t) (stream * p.n_rows + row) * (p.n_head_kv * p.gqa) + head) * shape::head_dim + first_value;
    *reinterpret_cast<float4 *>(p.out + at) = make_float4(v.x * factor, v.y * factor, v.z * factor, v.w * factor);
}

// Leave a warp's state in shared memory: out[column][head_dim] and (maximum, sum) of each column.
template <class shape> static __device__ __forceinline__ void park(const column_state<shape> &state, float *out, float *ml) {
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
                    *reinterpret_cast<float2 *>(out + column * shape::head_dim + value) =
                        make_float2(state.out[b][r][n][c], state.out[b][r][n][c + 2]);
                }
            }
        }
    }
}

// Merge the groups of the block; write the output itself if the cache is not split, else a partial result.
// parked: [group][head][column][head_dim], ml: [group][head][column][2]. One warp takes 32*4 values at a time.
template <class shape> static __device__ __forceinline__ void merge_groups(const attend_params &p, const float *parked, const float *ml, int warps) {
    constexpr int lanes = shape::head_dim < 128 ? shape::head_dim / 4 : 32, passes = shape::head_dim / (4 * lanes);
    const int lane = threadIdx.x & 31;
    const int first_head = blockIdx.y / p.column_blocks * p.heads_per_block;
    const int first_column = blockIdx.y % p.column_blocks * shape::columns;
    const int columns = p.heads_per_block * shape::columns;
    for (int unit = threadIdx.x / 32; unit < columns * passes; unit += warps) {
        const int head_column = unit / passes, first_value = (unit % passes * lanes + lane % lanes) * 4;
        const int head = head_column / shape::columns, column = first_column + head_column % shape::columns;
        if (column >= p.n_columns) {
            continue;
        }
        float maximum = lowest_score, sum = 0.0f;
        for (int i = 0; i < p.groups; i++) {
            maximum = fmaxf(maximum, ml[2 * (i * columns + head_column)]);
        }
        float4 v = make_float4(0, 0, 0, 0);
        for (int i = 0; i < p.groups; i++) {
            const float *state = ml + 2 * (i * columns + head_column);
            const float weight = exp2_fast(state[0] - maximum);
            const float4 x = *reinterpret_cast<const float4 *>(parked + (i * columns + head_column) * shape::head_dim + first_value);
            sum = fmaf(state[1], weight, sum);
            v.x = fmaf(x.x, weight, v.x), v.y = fmaf(x.y, weight, v.y), v.z = fmaf(x.z, weight, v.z), v.w = fmaf(x.w, weight, v.w);
        }
        if (p.splits == 1) {
            store_output<shape>(p, blockIdx.z, first_head + head, column, first_value, v, maximum, sum);
        } else {
            const int64_t at = ((int64_t) (blockIdx.z * p.n_head_kv + first_head + head) * p.n_columns + column) * p.splits + blockIdx.x;
            *reinterpret_cast<float4 *>(p.partial + at * shape::head_dim + first_value) = v;
            if (first_value == 0) {
                *reinterpret_cast<float2 *>(p.partial_ml + 2 * at) = make_float2(maximum, sum);
            }
        }
    }
}

template <class shape, int warps> __global__ void __launch_bounds__(warps * 32, 1) attend_kernel(const __grid_constant__ attend_params p) {
    extern __shared__ __align__(16) uint8_t shared[];
    const shared_layout<shape> layout = {shared};
    const int warp = threadIdx.x / 32, group = warp / p.heads_per_block, head = warp - group * p.heads_per_block;
    const bool active = group < p.groups;
    const int first_head = blockIdx.y / p.column_blocks * p.heads_per_block;
    const int first_column = blockIdx.y % p.column_blocks * shape::columns;
    const int tile_begin = (int) ((int64_t) p.tiles * blockIdx.x / p.splits), tile_end = (int) ((int64_t) p.tiles * (blockIdx.x + 1) / p.splits);

    group_stage stage;
    const int group_bytes = ring_slots * p.slot_bytes + 2 * p.mask_rows * keys_per_tile * 2;
    stage.ring = layout.rings(p) + group * group_bytes;
    stage.mask = stage.ring + ring_slots * p.slot_bytes;
    stage.k = p.k.data + blockIdx.z * p.k.stride_stream + first_head * p.k.stride_head;
    stage.v = p.v.data + blockIdx.z * p.v.stride_stream + first_head * p.v.stride_head;
    const int first_row = first_column / p.gqa;
    stage.mask_source = p.mask + blockIdx.z * p.mask_stride_stream + first_row * p.mask_stride_row;
    stage.thread = threadIdx.x - group * p.heads_per_block * 32;
    stage.threads = p.heads_per_block * 32;
    stage.barrier_id = 1 + group;

    wait_for_previous_kernel();
    if (active) {
        stage_item(p, 0, tile_begin + group, tile_end, stage);
        stage_item(p, 1, tile_begin + group, tile_end, stage);
    }
    load_queries<shape>(p, layout, warps);
    __syncthreads();
    let_next_kernel_start();

    column_state<shape> state = {};
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            state.maximum[n][c] = lowest_score;
            const int column = min(first_column + 8 * n + 2 * (int) (threadIdx.x & 3) + c, p.n_columns - 1);
            state.mask_row[n][c] = (column / p.gqa - first_row) * keys_per_tile * 2;
        }
    }
    if (active) {
        walk<shape>(p, stage, state, tile_begin + group, tile_end, head, layout.fragments(head), layout.scales(p, head));
    }
    __syncthreads(); // everything staged has been used: the memory now holds the groups' results
    const int columns = p.heads_per_block * shape::columns;
    float *parked = reinterpret_cast<float *>(shared), *ml = parked + p.groups * columns * shape::head_dim;
    if (active) {
        const int at = warp * shape::columns;
        park<shape>(state, parked + at * shape::head_dim, ml + 2 * at);
    }
    __syncthreads();
    merge_groups<shape>(p, parked, ml, warps);
}

// One thread block a column: merge the splits, warp by warp, then un-rotate and store.
template <class shape, int warps> __global__ void __launch_bounds__(warps * 32) combine_kernel(const __grid_constant__ attend_params p) {
    constexpr int lanes = shape::head_dim < 128 ? shape::head_dim / 4 : 32, passes = shape::head_dim / (4 * lanes), rows = 32 / lanes;
    __shared__ float4 gathered[warps][passes][32];
    __shared__ float tops[warps], sums[warps];
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int64_t first = ((int64_t) (blockIdx.z * p.n_head_kv + blockIdx.y) * p.n_columns + blockIdx.x) * p.splits;
    wait_for_previous_kernel();
    let_next_kernel_start();

    float maximum = lowest_score;
    for (int i = threadIdx.x; i < p.splits; i += warps * 32) {
        maximum = fmaxf(maximum, p.partial_ml[2 * (first + i)]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
    }
    if (lane == 0) {
        tops[warp] = maximum;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < warps; i++) {
        maximum = fmaxf(maximum, tops[i]);
    }
    float4 v[passes] = {};
    float sum = 0.0f;
#pragma unroll 4
    for (int i = warp * rows + lane / lanes; i < p.splits; i += warps * rows) {
        const float2 state = *reinterpret_cast<const float2 *>(p.partial_ml + 2 * (first + i));
        const float weight = exp2_fast(state.x - maximum);
        sum = fmaf(state.y, weight, sum);
#pragma unroll
        for (int pass = 0; pass < passes; pass++) {
            const float4 x = *reinterpret_cast<const float4 *>(p.partial + (first + i) * shape::head_dim + (pass * lanes + lane % lanes) * 4);
            v[pass].x = fmaf(x.x, weight, v[pass].x), v[pass].y = fmaf(x.y, weight, v[pass].y);
            v[pass].z = fmaf(x.z, weight, v[pass].z), v[pass].w = fmaf(x.w, weight, v[pass].w);
        }
    }
#pragma unroll
    for (int pass = 0; pass < passes; pass++) {
        gathered[warp][pass][lane] = v[pass];
    }
    if (rows == 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, 16);
    }
    if (lane == 0) {
        sums[warp] = sum;
    }
    __syncthreads();
    if (warp >= passes) {
        return;
    }
    sum = 0.0f;
    float4 total = make_float4(0, 0, 0, 0);
    for (int i = 0; i < warps; i++) {
        sum += sums[i];
        for (int row = 0; row < rows; row++) {
            const float4 x = gathered[i][warp][lane % lanes + row * lanes];
            total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w;
        }
    }
    store_output<shape>(p, blockIdx.z, blockIdx.y, blockIdx.x, (warp * lanes + lane % lanes) * 4, total, maximum, sum);
}

} // namespace turbo_cuda
