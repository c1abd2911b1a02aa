// The attention kernel itself: what its groups of warps do one after the other.

#pragma once

#include "attend_merge.cuh"
#include "attend_newest.cuh"

namespace turbo_cuda {

template <class shape> static __global__ void __launch_bounds__(shape::warps * 32, 1)
    attend_kernel(const __grid_constant__ attend_params p) {
    constexpr int warps = shape::warps;
    extern __shared__ __align__(16) uint8_t shared[];
    const shared_layout<shape> layout = {shared};
    const int warp = threadIdx.x / 32, group = p.by_heads.divide(warp), head = warp - group * p.heads_per_block;
    const bool active = group < p.groups;
    const int head_chunk = p.column_blocks == 1 ? blockIdx.y : blockIdx.y / p.column_blocks;
    const int first_head = head_chunk * p.heads_per_block;
    const int first_column = (blockIdx.y - head_chunk * p.column_blocks) * shape::columns;
    // The group's share of the block's share of the cache, in units of 16 tokens.
    int split = blockIdx.x, first_unit = 0, split_units = p.split_units, split_rest = p.split_rest;
    if (split >= p.splits - p.late) {
        first_unit = (p.splits - p.late) * split_units + split_rest;
        split -= p.splits - p.late, split_units = p.late_units, split_rest = 0;
    }
    first_unit += split * split_units + min(split, split_rest);
    const int units = split_units + (split < split_rest ? 1 : 0);
    // The groups share them by so many, since part of a tile of q8_0 takes as long as a whole one.
    constexpr int together = shape::k_format == KV_Q8_0 ? shape::slices : 1;
    const int shares = (units + together - 1) / together, group_shares = shares / p.groups, // too many for a divider
        group_rest = shares - group_shares * p.groups;
    const int begin = 16 * (first_unit + together * (group * group_shares + min(group, group_rest)));
    const int group_end = begin + 16 * together * (group_shares + (group < group_rest ? 1 : 0));
    const int end = active ? min(min(group_end, 16 * (first_unit + units)), p.n_kv) : 0;
    const int count = max(0, min(shape::keys, end - begin));
    const int first_run = p.runs.run_of(16 * first_unit),
              n_runs = runs_touched(p, first_run, 16 * (first_unit + units));
    if (p.run_room > 0) {
        prefetch_runs(p, first_head * shape::head_dim, p.heads_per_block * shape::head_dim, first_run, n_runs, warps);
    }

    // Queries and mask go first: they are on the critical path, and often nothing has to be waited for. Where something
    // has, the tables are filled meanwhile.
    if constexpr (is_trellis(shape::k_format)) {
        fill_table<shape::k_format, shape::look_up>(layout.k_table(p), threadIdx.x, warps * 32);
    }
    if constexpr (is_trellis(shape::v_format) && shape::v_format != shape::k_format) {
        fill_table<shape::v_format, shape::look_up>(layout.v_table(p), threadIdx.x, warps * 32);
    }
    if constexpr (shape::family == family_any) {
        fill_pair_table(p.k.format, layout.k_table(p), threadIdx.x, warps * 32);
        if (p.v.format != p.k.format) {
            fill_pair_table(p.v.format, layout.v_table(p), threadIdx.x, warps * 32);
        }
    }
    if (!p.inputs_ready) {
        wait_for_previous_kernel();
    }
    query_loader<shape> queries(p, first_head, first_column, warp);
    mask_reader mask = {};
    if (p.mask != nullptr) {
        mask.row = p.mask + blockIdx.z * p.mask_stride_stream + p.by_gqa.divide(first_column) * p.mask_stride_row;
        mask.ahead = p.n_rows == 1 && (reinterpret_cast<uintptr_t>(mask.row) & 3) == 0;
        if (mask.ahead && count > 0) {
            mask.next = mask.load_pair<shape>(begin, p.n_kv);
        }
    }

    item_ring ring = {};
    ring.slots = layout.ring(p, group);
    ring.arrived = layout.barriers(group), ring.released = ring.arrived + ring_slots;
    ring.slot_bytes = p.slot_bytes, ring.rows = p.copy_rows;
    ring.thread = head * 32 + (threadIdx.x & 31), ring.threads = p.heads_per_block * 32;
    ring.barrier_id = 1 + group;
    ring.first_round = true;
    if (active && ring.thread == 0) {
        ring.init_barriers();
    }
    const int skipped = p.copy_rows ? first_head : 0, staged_head = p.copy_rows ? head : first_head + head;
    const char *k = p.k.data + blockIdx.z * p.k.stride_stream + skipped * p.k.stride_head;
    const char *v = p.v.data + blockIdx.z * p.v.stride_stream + skipped * p.v.stride_head;
    const pending_rows pending(p.pending);
    if (threadIdx.x == 0) {
        *layout.pending() = pending;
        *layout.first_run() = first_run;
    }
    __syncthreads(); // the barriers are ready
    // Rows that are still being written are waited for, but only where they are read; newest tokens taken from their
    // source are not read at all.
    const bool takes = shape::reads_trellis && p.takes_newest && pending.known();
    if (!pending.known()) {
        wait_for_previous_kernel();
    }
    const bool early = takes || !pending.concern(begin, begin + shape::keys);
    const bool newest = takes && blockIdx.x == 0;
#pragma unroll 1
    for (int late = 0; late < 2; late++) { // one place to fetch from: code that runs once is bound by its own loading
        if (active && early != (late != 0)) {
            ring.fetch(p.k, k, begin, count);
            ring.fetch(p.v, v, begin, count);
        }
        if (late) {
            break;
        }
        queries.prepare_all(p, layout, first_run, n_runs, warps);
        if (newest) {
            prepare_newest<shape>(p, layout, pending.low, first_head, first_column, warps);
        }
        if (!takes) {
            wait_for_previous_kernel();
        }
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
        walk<shape>(p, ring, k, v, mask, state, begin, end, head, staged_head, first_column, layout);
        show_maxima<shape>(state, layout.maxima() + warp * shape::columns);
    }
    __syncthreads(); // everything staged has been used: the memory now takes the groups' results
    if (active) {
        park<shape>(p, layout, group, head, state);
    }
    __syncthreads();
    merge_groups<shape>(p, layout, first_head, first_column, warps);
    if (shape::in_clusters && p.cluster) {
        merge_cluster<shape>(p, layout, first_head, first_column, warps);
    }
}

} // namespace turbo_cuda
