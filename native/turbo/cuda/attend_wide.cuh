// Attention of many columns (query heads x rows of a KV head) with warpgroup products: short batches over a long cache, on
// sm_90a.
//
// A thread block has up to four KV heads and 64 columns of each. Two warpgroups unpack tiles of K and V to f16 in shared
// memory; each works for one that multiplies, which has one or two of the heads and accumulates their output over the
// whole share of the cache, so nothing is merged before the thread blocks along the cache are. Scores have the columns as
// rows of the product: probabilities stay in registers as the operand of the second one.

#pragma once

#include "attend_merge.cuh"
#include "rows_query.cuh"
#include "rows_tile.cuh"
#include "wide_stage.cuh"

namespace turbo_cuda {

#ifdef TURBO_WARPGROUP_PRODUCTS

// The mask of a tile, a piece of eight tokens a lane, fetched a tile ahead.
template <class shape> struct wide_mask {
    static constexpr int pieces = shape::keys / 8;
    const char *at; // of the lane's piece of the first tile; null: it has none
    bool masked, quick;
    uint4 ahead;

    __device__ __forceinline__ wide_mask(const attend_params &p, int first_column) {
        const int thread = threadIdx.x % warpgroup;
        const int first = p.by_gqa.divide(first_column),
                  rows = p.by_gqa.divide(min(first_column + wide_columns, p.n_columns) - 1) - first + 1;
        const char *row = p.mask + blockIdx.z * p.mask_stride_stream + (first + thread / pieces) * p.mask_stride_row;
        masked = p.mask != nullptr;
        quick = masked && rows <= warpgroup / pieces &&
                ((reinterpret_cast<uintptr_t>(p.mask) | p.mask_stride_row | p.mask_stride_stream) & 15) == 0;
        at = quick && thread / pieces < rows ? row + thread % pieces * 16 : nullptr;
    }
    __device__ __forceinline__ void look(const attend_params &p, int first) {
        ahead = make_uint4(!quick, 0, 0, 0);
        if (masked && at != nullptr) {
            ahead = first + shape::keys <= p.n_kv ? *reinterpret_cast<const uint4 *>(at + first * 2)
                                                  : make_uint4(1, 0, 0, 0);
        }
    }
    // What this warp has seen hides something.
    __device__ __forceinline__ bool hides() const {
        return masked && __any_sync(0xffffffffu, (ahead.x | ahead.y | ahead.z | ahead.w) != 0);
    }
};

// Fetch the share of the cache and unpack it, tile by tile, for one of the multiplying warpgroups.
template <class shape> static __device__ __forceinline__ void
wide_unpack(const attend_params &p, const wide_layout<shape> &layout, int first_head, int first_column, int begin,
            int end, int pair, int heads, int first_value) {
    constexpr int threads = shape::unpackers * warpgroup;
    const int thread = threadIdx.x - wide_pairs * warpgroup, warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31;
    if (!p.inputs_ready) {
        wait_for_previous_kernel();
    }
    const pending_rows pending(p.pending);
    if (thread == 0) {
        *layout.pending(p) = pending;
    }
    fill_pair_table(p.k.format, layout.k_table(p), thread, threads, unsigned_bias);
    if (p.v.format != p.k.format) {
        fill_pair_table(p.v.format, layout.v_table(p), thread, threads, unsigned_bias);
    }
    barrier(1, threads);
    tile_ring staged;
    staged.base = layout.staged(p);
    staged.arrived = layout.staged_barriers(p), staged.released = staged.arrived + tile_ring::slots;
    staged.pending = layout.pending(p), staged.waited = !p.inputs_ready;
    staged.thread = thread, staged.threads = threads, staged.barrier_id = 1;
    if (!pending.known() && !staged.waited) {
        wait_for_previous_kernel();
        staged.waited = true;
    }
    const int skipped = p.copy_rows ? first_head : 0, staged_head = p.copy_rows ? 0 : first_head;
    const char *k = p.k.data + blockIdx.z * p.k.stride_stream + skipped * p.k.stride_head;
    const char *v = p.v.data + blockIdx.z * p.v.stride_stream + skipped * p.v.stride_head;
    for (int i = 0; i < tile_ring::slots; i++) {
        staged.fetch(p, k, v, i, begin + i * shape::keys, min(shape::keys, end - begin - i * shape::keys));
    }
    wide_mask<shape> mask(p, first_column);
    mask.masked &= first_value == 0; // with K
    mask.look(p, begin);
    constexpr int step = shape::unpackers / wide_pairs; // of the values K and V that this warpgroup takes
    wide_ring ring = layout.ring(p, pair);
    ring.next(first_value);
    const int row = shape::lane_chunks().row;
    const uint32_t k_first = staged_rows(p.k, k, staged_head + pair, row).first,
                   v_first = staged_rows(p.v, v, staged_head + pair, row).first;
#pragma unroll 1
    for (int i = 0, first = begin; first < end; i++, first += shape::keys) {
        const bool hides = mask.hides();
        mask.look(p, first + shape::keys);
        const uint8_t *tile = staged.take(p, i);
#pragma unroll 1
        for (int item = first_value; item < 2 * heads; item += step) {
            const int value = item & 1, number = item >> 1; // V, not K; of the pair's heads
            const stage_params &x = value ? p.v : p.k;
            const tile_rows rows = {tile + (value ? p.slot_bytes : 0),
                                    (value ? v_first : k_first) + wide_pairs * number * x.head_bytes, 8 * x.pitch};
            ring.wait_free();
            unpack<shape>(ring.tiles + ring.place * shape::tile_bytes, x, value ? layout.v_table(p) : layout.k_table(p),
                          rows, end - first, warp, 4);
            if (lane == 0) {
                layout.hidden(p, pair)[ring.place * 4 + warp] = hides;
            }
            products_see_memory();
            __syncwarp();
            if (lane == 0) {
                phase_arrive(ring.full + ring.place);
            }
            ring.next(step);
        }
        staged.release(i);
        const int later = first + tile_ring::slots * shape::keys;
        staged.fetch(p, k, v, i + tile_ring::slots, later, min(shape::keys, end - later));
    }
}

// Products of the heads `pair` and pair + 2 with their tiles; their results go to the partial ones.
template <class shape> static __device__ __forceinline__ void
wide_multiply(const attend_params &p, const wide_layout<shape> &layout, int first_head, int first_column, int begin,
              int end, int pair, int heads) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    if (!p.inputs_ready) {
        wait_for_previous_kernel();
    }
    prepare_columns<shape>(p, first_head + pair, wide_pairs, first_column, wide_columns, heads * wide_columns,
                           threadIdx.x % warpgroup / 16, warpgroup / 16,
                           [&](int number, int column, const auto &x, float factor, float scale) {
                               const int value = lane % 16 * 8, chunk = value % 32 / 8 * 4 + value / 32; // its 16 bytes
                               uint8_t *to = layout.queries(pair + wide_pairs * number) + chunk / 8 * wide_columns * 128 +
                                             column * 128 + ((chunk % 8 ^ column % 8) << 4);
                               *reinterpret_cast<uint4 *>(to) =
                                   make_uint4(two_halves(x[0][0] * factor, x[0][1] * factor),
                                              two_halves(x[0][2] * factor, x[0][3] * factor),
                                              two_halves(x[0][4] * factor, x[0][5] * factor),
                                              two_halves(x[0][6] * factor, x[0][7] * factor));
                               if (lane % 16 == 0) {
                                   layout.scales(p, pair + wide_pairs * number)[column] = scale;
                               }
                           });
    products_see_memory();
    barrier(2 + pair, warpgroup);

    rows_state<shape> state[shape::heads] = {};
    float factor[shape::heads][2];
#pragma unroll
    for (int h = 0; h < shape::heads; h++) {
        state[h].maximum[0][0] = state[h].maximum[0][1] = lowest_score;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            factor[h][i] = h < heads ? layout.scales(p, pair + wide_pairs * h)[16 * warp + 8 * i + g] : 0.0f;
        }
    }
    const rows_mask<shape> mask(p, first_column + 16 * warp);
    wide_ring ring = layout.ring(p, pair);
    const product_operand queries = product_operand::at(layout.queries(pair)), keys = product_operand::at(ring.tiles),
                          values = product_operand::at(ring.tiles, shape::keys * 128);
#pragma unroll 1
    for (int first = begin; first < end; first += shape::keys) {
#pragma unroll
        for (int h = 0; h < shape::heads; h++) {
            if (h >= heads) {
                break;
            }
            float s[1][shape::keys / 8][4];
            ring.wait_full();
            const product_operand a = queries + wide_pairs * h * shape::query_bytes,
                                  b = keys + ring.place * shape::tile_bytes;
            hold(s[0]);
            products_begin();
#pragma unroll
            for (int step = 0; step < 8; step++) {
                product_64(s[0], a + (step / 4 * wide_columns * 128 + step % 4 * 32),
                           b + (step / 4 * shape::keys * 128 + step % 4 * 32), step > 0);
            }
            products_commit();
            const uint4 hidden = *reinterpret_cast<const uint4 *>(layout.hidden(p, pair) + ring.place * 4);
            products_wait<0>();
            hold(s[0]);
            if (lane == 0) {
                phase_arrive(ring.free + ring.place);
            }
            ring.next();
            float count[1][2] = {{factor[h][0], factor[h][1]}};
            if ((hidden.x | hidden.y | hidden.z | hidden.w) != 0 || p.soft_cap != 0.0f || first + shape::keys > end) {
                limit_rows<shape>(s, count, p, mask, first, end, first_column + 16 * warp);
            }
            uint32_t probabilities[1][shape::keys / 8][2];
            soften_rows<shape>(probabilities, s, count, state[h]);
            ring.wait_full();
            hold(state[h].out[0]);
            products_begin();
#pragma unroll
            for (int step = 0; step < shape::keys / 16; step++) {
                const uint32_t(&x)[2] = probabilities[0][2 * step], (&y)[2] = probabilities[0][2 * step + 1];
                const uint32_t a[4] = {x[0], x[1], y[0], y[1]};
                const product_operand b = values + (ring.place * shape::tile_bytes + step * 2048);
                product_64<0>(state[h].out[0], a, b);
                product_64<8>(state[h].out[0], a, b + shape::keys * 128);
            }
            products_commit();
            products_wait<0>();
            hold(state[h].out[0]);
            if (lane == 0) {
                phase_arrive(ring.free + ring.place);
            }
            ring.next();
        }
    }
    const float sum_unit = exp2_fast(-probability_shift),
                unit = p.v.format <= KV_TURBO4_TCQ ? sum_unit / code_part : sum_unit * half_weight;
#pragma unroll
    for (int h = 0; h < shape::heads; h++) {
        const int head = first_head + pair + wide_pairs * h;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float sum = h < heads ? state[h].sum[0][i] : 0.0f;
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            const int column = first_column + 16 * warp + 8 * i + g;
            if (h >= heads || column >= p.n_columns) {
                continue;
            }
            const int64_t at =
                ((int64_t) (blockIdx.z * p.n_head_kv + head) * p.n_columns + column) * p.splits + blockIdx.x;
            if (t == 0) {
                *reinterpret_cast<float2 *>(p.partial_ml + 2 * at) =
                    make_float2(state[h].maximum[0][i], sum * sum_unit);
            }
#pragma unroll
            for (int c = 0; c < shape::chunks; c++) {
                const int value = c % 4 * 32 + c / 4 * 8 + 2 * t;
                *reinterpret_cast<float2 *>(p.partial + at * shape::head_dim + value) =
                    make_float2(state[h].out[0][c][2 * i] * unit, state[h].out[0][c][2 * i + 1] * unit);
            }
        }
    }
}
#endif

template <class shape> static __global__ void __launch_bounds__(shape::threads, 1)
    attend_wide_kernel(const __grid_constant__ attend_params p) {
#ifdef TURBO_WARPGROUP_PRODUCTS
    extern __shared__ __align__(16) uint8_t shared[];
    const wide_layout<shape> layout = {shared + (-shared_address(shared) & 1023u)};
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / warpgroup, 0); // the compiler sees that it is uniform
    const int pair = group % wide_pairs, heads = (p.heads_per_block - pair + wide_pairs - 1) / wide_pairs;
    const int head_chunk = p.column_blocks == 1 ? blockIdx.y : blockIdx.y / p.column_blocks;
    const int first_head = head_chunk * p.heads_per_block;
    const int first_column = (blockIdx.y - head_chunk * p.column_blocks) * wide_columns;
    const int split = blockIdx.x, first_unit = split * p.split_units + min(split, p.split_rest);
    const int begin = 16 * first_unit,
              end = min(begin + 16 * (p.split_units + (split < p.split_rest ? 1 : 0)), p.n_kv);
    if (threadIdx.x == 0) {
        tile_ring staged;
        staged.arrived = layout.staged_barriers(p), staged.released = staged.arrived + tile_ring::slots;
        staged.threads = shape::unpackers * warpgroup;
        staged.init_barriers(p);
        for (int i = 0; i < wide_pairs; i++) {
            layout.ring(p, i).init_barriers();
        }
    }
    __syncthreads();
    let_next_kernel_start();
    if (group < wide_pairs) {
        registers_up<shape::most_registers>();
        wide_multiply<shape>(p, layout, first_head, first_column, begin, end, pair, heads);
    } else {
        registers_down<shape::least_registers>();
        wide_unpack<shape>(p, layout, first_head, first_column, begin, end, pair, heads, group / wide_pairs - 1);
    }
    wait_for_previous_kernel(); // whoever comes next takes what this launch has waited for as done
#endif
}

} // namespace turbo_cuda
