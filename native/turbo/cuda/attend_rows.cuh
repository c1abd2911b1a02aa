// Attention of many columns (query heads x rows of a KV head): short batches over a long cache.
//
// Unpacking costs more than the products, so a tile of tokens is unpacked once, to f16 in shared memory, and serves
// all columns from there. A team of warps has one KV head: its warps share the unpacking of a tile, then each
// multiplies it with 16 or 32 columns of its own (scores with the columns as rows of the product, so that probabilities
// are already laid out as the operand of the second one). Teams of all heads that a thread block stages form a group;
// groups take stretches of the cache of their own and are merged at the end, as are thread blocks.

#pragma once

#include "attend_merge.cuh"
#include "rows_query.cuh"
#include "rows_tile.cuh"

namespace turbo_cuda {

// Leave a warp's results in shared memory, in the order of the head.
template <class shape> static __device__ __forceinline__ void
park_rows(const attend_params &p, const rows_layout<shape> &layout, int warp, rows_state<shape> &state) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const float sum_unit = exp2_fast(-probability_shift),
                unit = p.v.format <= KV_TURBO4_TCQ ? sum_unit / code_part : sum_unit * half_weight;
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int column = 16 * m + 8 * h + g;
            float sum = state.sum[m][h];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (t == 0) {
                layout.states(warp)[column] = make_float2(state.maximum[m][h], sum * sum_unit);
            }
            float *to = layout.parked(warp) + column * shape::parked_row;
#pragma unroll
            for (int c = 0; c < shape::chunks; c++) {
                const int in_block = c % (shape::block_values / 8), r = in_block / 4 * 2 + (t >> 1);
                const int value = c / (shape::block_values / 8) * shape::block_values +
                                  shape::plain::position(in_block % 4, r, 2 * (t & 1));
                *reinterpret_cast<float2 *>(to + value) =
                    make_float2(state.out[m][c][2 * h] * unit, state.out[m][c][2 * h + 1] * unit);
            }
        }
    }
}

// Merge the groups; write the output itself if the cache is not split, else a partial result.
template <class shape> static __device__ __forceinline__ void
merge_rows(const attend_params &p, const rows_layout<shape> &layout, int first_head, int first_column) {
    constexpr int lanes = shape::head_dim < 128 ? shape::head_dim / 4 : 32, passes = shape::head_dim / (4 * lanes);
    const int lane = threadIdx.x & 31, team = p.warps_per_head * shape::columns, columns = p.heads_per_block * team;
    const int warps = p.heads_per_block * p.warps_per_head; // of a group
    for (int unit = threadIdx.x / 32; unit < columns * passes; unit += rows_warps) {
        const int head_column = unit / passes, first_value = (unit % passes * lanes + lane % lanes) * 4;
        const int head = head_column / team, column = first_column + head_column - head * team;
        if (column >= p.n_columns) {
            continue;
        }
        const int warp = head_column / shape::columns, in_warp = head_column % shape::columns;
        float maximum = lowest_score, sum = 0.0f;
        float4 v = make_float4(0, 0, 0, 0);
        for (int i = 0; i < p.groups; i++) {
            const float2 state = layout.states(warp + i * warps)[in_warp];
            const float4 x = *reinterpret_cast<const float4 *>(layout.parked(warp + i * warps) +
                                                               in_warp * shape::parked_row + first_value);
            const float top = fmaxf(maximum, state.x), scale = exp2_fast(maximum - top),
                        weight = exp2_fast(state.x - top);
            maximum = top;
            sum = fmaf(state.y, weight, sum * scale);
            v.x = fmaf(x.x, weight, v.x * scale), v.y = fmaf(x.y, weight, v.y * scale);
            v.z = fmaf(x.z, weight, v.z * scale), v.w = fmaf(x.w, weight, v.w * scale);
        }
        if (p.splits == 1) {
            store_output<typename shape::plain>(p, blockIdx.z, first_head + head, column, first_value, v, maximum, sum);
        } else {
            store_partial<shape>(p, first_head + head, column, first_value, v, maximum, sum);
        }
    }
}

template <class shape> static __global__ void __launch_bounds__(rows_warps * 32, 1)
    attend_rows_kernel(const __grid_constant__ attend_params p) {
    extern __shared__ __align__(16) uint8_t shared[];
    const rows_layout<shape> layout = {shared};
    const int warp = threadIdx.x / 32, team = p.by_warps.divide(warp), part = warp - team * p.warps_per_head;
    const int group = p.by_heads.divide(team), head = team - group * p.heads_per_block;
    const bool active = group < p.groups;
    const int head_chunk = p.column_blocks == 1 ? blockIdx.y : blockIdx.y / p.column_blocks;
    const int first_head = head_chunk * p.heads_per_block;
    const int first_column = (blockIdx.y - head_chunk * p.column_blocks) * p.warps_per_head * shape::columns;
    const int column = first_column + part * shape::columns;
    // The group's share of the block's share of the cache, in units of 16 tokens.
    const int split = blockIdx.x, first_unit = split * p.split_units + min(split, p.split_rest),
              units = p.split_units + (split < p.split_rest ? 1 : 0);
    const int group_units = units / p.groups, group_rest = units - group_units * p.groups;
    const int begin = 16 * (first_unit + group * group_units + min(group, group_rest));
    const int end = active ? min(begin + 16 * (group_units + (group < group_rest ? 1 : 0)), p.n_kv) : 0;

    const int first_run = p.runs.run_of(16 * first_unit),
              n_runs = runs_touched(p, first_run, 16 * (first_unit + units));
    if (p.run_room > 0) {
        prefetch_runs(p, first_head * shape::head_dim, p.heads_per_block * shape::head_dim, first_run, n_runs,
                      rows_warps);
    }
    fill_pair_table(p.k.format, layout.k_table(p), threadIdx.x, rows_warps * 32, unsigned_bias);
    if (p.v.format != p.k.format) {
        fill_pair_table(p.v.format, layout.v_table(p), threadIdx.x, rows_warps * 32, unsigned_bias);
    }
    const int group_threads = p.heads_per_block * p.warps_per_head * 32;
    tile_ring ring;
    ring.base = layout.ring(p, group);
    ring.arrived = layout.barriers(group), ring.released = ring.arrived + tile_ring::slots;
    ring.pending = layout.pending(), ring.waited = !p.inputs_ready;
    ring.thread = threadIdx.x - group * group_threads, ring.threads = group_threads, ring.barrier_id = 1 + group;
    if (active && ring.thread == 0) {
        ring.init_barriers(p);
    }
    if (!p.inputs_ready) {
        wait_for_previous_kernel();
    }
    const pending_rows pending(p.pending);
    if (threadIdx.x == 0) {
        *layout.pending() = pending;
        *layout.first_run() = first_run;
    }
    __syncthreads(); // the barriers are ready
    const int skipped = p.copy_rows ? first_head : 0, staged_head = p.copy_rows ? head : first_head + head;
    const char *k = p.k.data + blockIdx.z * p.k.stride_stream + skipped * p.k.stride_head;
    const char *v = p.v.data + blockIdx.z * p.v.stride_stream + skipped * p.v.stride_head;
    if (!pending.known() && !ring.waited) {
        wait_for_previous_kernel();
        ring.waited = true;
    }
    const int tokens = end - begin;
    if (active) {
        for (int i = 0; i < tile_ring::slots; i++) {
            ring.fetch(p, k, v, i, begin + i * shape::keys, min(shape::keys, tokens - i * shape::keys));
        }
    }
    const int head_columns = p.warps_per_head * shape::columns, row = rows_layout<shape>::scale_row(p);
    const run_sums sums = {first_run, n_runs, layout.scales(p, 0) + row, head_columns, row};
    prepare_columns<shape>(p, first_head, first_column, head_columns, row, threadIdx.x / 16, rows_warps * 2, sums,
                           [&](int number, int in_head, const auto &x, float factor, float scale) {
                               store_column<shape>(x, factor, layout.queries(p, number), in_head);
                               if (threadIdx.x % 16 == 0) {
                                   layout.scales(p, number)[in_head] = scale;
                               }
                           });
    __syncthreads();
    let_next_kernel_start();

    rows_state<shape> state = {};
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
        state.maximum[m][0] = state.maximum[m][1] = lowest_score;
    }
    const uint4 *queries = reinterpret_cast<const uint4 *>(layout.queries(p, head)) +
                           part * shape::tiles * shape::steps * 32 + threadIdx.x % 32;
    const float *scales = layout.scales(p, head) + part * shape::columns;
    uint8_t *tile = layout.tiles(p, team);
    const int g = (threadIdx.x & 31) >> 2;
    const quarter_chunks<shape::head_dim> quarters(g, threadIdx.x & 3);
    const column_chunks<shape::head_dim> columns;
    rows_mask<shape> mask(p, column);
    const bool quick = mask.quick();
    if (quick && begin < end) {
        mask.look(p, begin);
    }
    tile_rows k_rows = staged_rows(p.k, k, staged_head, g), v_rows = staged_rows(p.v, v, staged_head, g);
    auto meet = [&]() { // all warps of the team
        if (p.warps_per_head == 1) {
            __syncwarp();
        } else {
            barrier(15 - team, p.warps_per_head * 32); // the first ones are the groups'
        }
    };
#pragma unroll 1
    for (int i = 0, first = begin; first < end; i++, first += shape::keys) {
        uint8_t *k_tile = tile + (p.tile_buffers == 2 ? (i & 1) * 2 * shape::tile_bytes : 0),
                *v_tile = k_tile + shape::tile_bytes;
        k_rows.shared = ring.take(p, i), v_rows.shared = k_rows.shared + p.slot_bytes;
        unpack<shape>(k_tile, p.k, layout.k_table(p), k_rows, end - first, part, p.warps_per_head);
        unpack<shape>(v_tile, p.v, layout.v_table(p), v_rows, end - first, part, p.warps_per_head);
        ring.release(i);
        meet();

        float s[shape::tiles][shape::keys / 8][4] = {}, factor[shape::tiles][2];
#pragma unroll
        for (int m = 0; m < shape::tiles; m++) {
            factor[m][0] = scales[16 * m + g], factor[m][1] = scales[16 * m + 8 + g];
        }
        if (p.run_room > 0) { // the products begin with what the runs add
            begin_with_runs<shape>(s, factor, p, scales, *layout.first_run(), first);
        }
        rows_scores<shape>(s, queries, k_tile, quarters);
        const bool clear = mask.row == nullptr ? first + shape::keys <= end : quick && mask.clear();
        if (quick && first + shape::keys < end) {
            mask.look(p, first + shape::keys);
        }
        if (!clear || p.soft_cap != 0.0f || first + shape::keys > end) {
            limit_rows<shape>(s, factor, p, mask.row, first, end, column);
        }
        uint32_t probabilities[shape::tiles][shape::keys / 8][2];
        soften_rows<shape>(probabilities, s, factor, state);
        rows_values<shape>(state.out, probabilities, v_tile, columns);
        const int later = first + tile_ring::slots * shape::keys;
        ring.fetch(p, k, v, i + tile_ring::slots, later, min(shape::keys, end - later));
        if (p.tile_buffers == 1) {
            meet();
        }
    }
    if (!ring.waited) { // whoever comes next takes what this launch has waited for as done
        wait_for_previous_kernel();
    }
    __syncthreads(); // everything staged has been used: the memory now takes the warps' results
    if (active) {
        park_rows<shape>(p, layout, warp, state);
    }
    __syncthreads();
    merge_rows<shape>(p, layout, first_head, first_column);
}

} // namespace turbo_cuda
