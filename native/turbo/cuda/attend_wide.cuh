// Attention of many columns (query heads x rows of a KV head) with warpgroup products: short batches over a long cache, on
// sm_90a.
//
// A thread block has two KV heads and 64 columns of each. Four warpgroups unpack tiles of K and V to f16 in shared memory; two
// multiply, each for a head, whose output they accumulate over the whole share of the cache, so nothing is merged before
// the thread blocks along the cache are. Scores have the columns as rows of the product: probabilities stay in registers
// as the operand of the second one.

#pragma once

#include "attend_merge.cuh"
#include "rows_query.cuh"
#include "rows_tile.cuh"
#include "wide_stage.cuh"

namespace turbo_cuda {

#ifdef TURBO_WARPGROUP_PRODUCTS

// Unpack one head's share of the cache, K or V, tile by tile. The first of all threads that do also fetches.
template <class shape> static __device__ __forceinline__ void
wide_unpack(const attend_params &p, const wide_layout<shape> &layout, int first_head, int begin, int end, int number,
            bool value) {
    const int thread = threadIdx.x - wide_heads * warpgroup, warp = threadIdx.x / 32 % 4;
    wide_stage<shape::slots> staged = layout.stage(p);
    if (!p.inputs_ready) {
        wait_for_previous_kernel();
    }
    const pending_rows pending(p.pending);
    if (thread == 0) {
        if (!pending.known()) {
            wait_for_previous_kernel();
        }
        for (int i = 0; i < shape::slots && begin + i * shape::keys < end; i++) {
            const int first = begin + i * shape::keys;
            staged.fetch(p, pending, i, first, min(shape::keys, end - first));
        }
    }
    fill_pair_table(p.k.format, layout.k_table(p), thread, unpacking_threads, unsigned_bias);
    if (p.v.format != p.k.format) {
        fill_pair_table(p.v.format, layout.v_table(p), thread, unpacking_threads, unsigned_bias);
    }
    barrier(1, unpacking_threads);
    wide_ring ring = layout.ring(p, number);
    ring.next(value);
    const stage_params &x = value ? p.v : p.k;
    tile_rows rows =
        staged_rows(x, x.data + blockIdx.z * x.stride_stream, first_head + number, shape::lane_chunks().row);
    const bool used = number < p.heads_per_block;
    with_unpacker<shape>(x.format, value ? layout.v_table(p) : layout.k_table(p), [&](const auto &unpacker) {
#pragma unroll 1
        for (int first = begin; first < end; first += shape::keys) {
            rows.shared = staged.take(p) + (value ? p.slot_bytes : 0);
            if (used) {
                ring.wait_free();
#pragma unroll
                for (int j = 0; j < shape::keys / 8; j += 4) {
                    unpacker(ring.tiles + ring.place * shape::tile_bytes, rows, j + warp, end - first, x.block_bytes);
                }
                products_see_memory();
                __syncwarp();
                if ((thread & 31) == 0) {
                    phase_arrive(ring.full + ring.place);
                }
                ring.next(2);
            }
            staged.release();
            const int later = first + shape::slots * shape::keys;
            if (thread == 0 && later < end) {
                phase_wait(staged.released + staged.slot, staged.round);
                staged.fetch(p, pending, staged.slot, later, min(shape::keys, end - later));
            }
            staged.next();
        }
    });
}

// Products of one head with its tiles; the result goes to the partial ones.
template <class shape> static __device__ __forceinline__ void
wide_multiply(const attend_params &p, const wide_layout<shape> &layout, int first_head, int first_column, int begin,
              int end, int number) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int column = first_column + 16 * warp; // the warp's first one
    if (number >= p.heads_per_block) {
        return;
    }
    if (!p.inputs_ready) {
        wait_for_previous_kernel();
    }
    prepare_columns<shape>(p, first_head + number, 1, first_column, wide_columns, wide_columns,
                           threadIdx.x % warpgroup / 16, warpgroup / 16,
                           [&](int, int in_head, const auto &x, float factor, float scale) {
                               const int value = lane % 16 * 8, chunk = value % 32 / 8 * 4 + value / 32; // its 16 bytes
                               uint8_t *to = layout.queries(number) + chunk / 8 * wide_columns * 128 + in_head * 128 +
                                             ((chunk % 8 ^ in_head % 8) << 4);
                               *reinterpret_cast<uint4 *>(to) =
                                   make_uint4(two_halves(x[0][0] * factor, x[0][1] * factor),
                                              two_halves(x[0][2] * factor, x[0][3] * factor),
                                              two_halves(x[0][4] * factor, x[0][5] * factor),
                                              two_halves(x[0][6] * factor, x[0][7] * factor));
                               if (lane % 16 == 0) {
                                   layout.scales(p, number)[in_head] = scale;
                               }
                           });
    products_see_memory();
    barrier(2 + number, warpgroup);

    rows_state<shape> state = {};
    float scales[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        state.maximum[0][i] = lowest_score;
        scales[i] = layout.scales(p, number)[16 * warp + 8 * i + g];
    }
    rows_mask<shape> mask(p, column);
    const bool quick = mask.quick();
    if (quick && begin < end) {
        mask.look(p, begin);
    }
    wide_ring ring = layout.ring(p, number);
    const product_operand queries = product_operand::at(layout.queries(number)),
                          tiles = product_operand::at(ring.tiles);
#pragma unroll 1
    for (int first = begin; first < end; first += shape::keys) {
        float s[1][shape::keys / 8][4];
        ring.wait_full();
        const product_operand k = tiles + ring.place * shape::tile_bytes;
        hold(s[0]);
        products_begin();
#pragma unroll
        for (int step = 0; step < 8; step++) {
            product_64(s[0], queries + (step / 4 * wide_columns * 128 + step % 4 * 32),
                       k + (step / 4 * shape::keys * 128 + step % 4 * 32), step > 0);
        }
        products_commit();
        products_wait<0>();
        hold(s[0]);
        if (lane == 0) {
            phase_arrive(ring.free + ring.place);
        }
        ring.next(1);
        float factor[1][2] = {{scales[0], scales[1]}};
        const bool clear = mask.row == nullptr || (quick && mask.clear());
        if (quick && first + shape::keys < end) {
            mask.look(p, first + shape::keys);
        }
        if (!clear || p.soft_cap != 0.0f || first + shape::keys > end) {
            limit_rows<shape>(s, factor, p, mask, first, end, column);
        }
        uint32_t probabilities[1][shape::keys / 8][2];
        soften_rows<shape>(probabilities, s, factor, state);
        ring.wait_full();
        const product_operand v = tiles + ring.place * shape::tile_bytes;
        hold(state.out[0]);
        products_begin();
#pragma unroll
        for (int step = 0; step < shape::keys / 16; step++) {
            const uint32_t(&x)[2] = probabilities[0][2 * step], (&y)[2] = probabilities[0][2 * step + 1];
            const uint32_t a[4] = {x[0], x[1], y[0], y[1]};
            product_64<0>(state.out[0], a, v + step * 2048);
            product_64<8>(state.out[0], a, v + (step * 2048 + shape::keys * 128));
        }
        products_commit();
        products_wait<0>();
        hold(state.out[0]);
        if (lane == 0) {
            phase_arrive(ring.free + ring.place);
        }
        ring.next(1);
    }
    const float sum_unit = exp2_fast(-probability_shift),
                unit = p.v.format <= KV_TURBO4_TCQ ? sum_unit / code_part : sum_unit * half_weight;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float sum = state.sum[0][i];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (column + 8 * i + g >= p.n_columns) {
            continue;
        }
        const int64_t at =
            ((int64_t) (blockIdx.z * p.n_head_kv + first_head + number) * p.n_columns + column + 8 * i + g) * p.splits +
            blockIdx.x;
        if (t == 0) {
            *reinterpret_cast<float2 *>(p.partial_ml + 2 * at) = make_float2(state.maximum[0][i], sum * sum_unit);
        }
#pragma unroll
        for (int c = 0; c < shape::chunks; c++) {
            const int value = c % 4 * 32 + c / 4 * 8 + 2 * t;
            *reinterpret_cast<float2 *>(p.partial + at * shape::head_dim + value) =
                make_float2(state.out[0][c][2 * i] * unit, state.out[0][c][2 * i + 1] * unit);
        }
    }
}
#endif

template <class shape> static __global__ void __launch_bounds__(wide_threads, 1)
    attend_wide_kernel(const __grid_constant__ attend_params p) {
#ifdef TURBO_WARPGROUP_PRODUCTS
    extern __shared__ __align__(16) uint8_t shared[];
    const wide_layout<shape> layout = {shared + (-shared_address(shared) & 1023u)};
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / warpgroup, 0); // the compiler sees that it is uniform
    const int head_chunk = p.column_blocks == 1 ? blockIdx.y : blockIdx.y / p.column_blocks;
    const int first_head = head_chunk * p.heads_per_block;
    const int first_column = (blockIdx.y - head_chunk * p.column_blocks) * wide_columns;
    const int split = blockIdx.x, first_unit = split * p.split_units + min(split, p.split_rest);
    const int begin = 16 * first_unit,
              end = min(begin + 16 * (p.split_units + (split < p.split_rest ? 1 : 0)), p.n_kv);
    if (threadIdx.x == 0) {
        layout.stage(p).init_barriers();
        for (int i = 0; i < wide_heads; i++) {
            layout.ring(p, i).init_barriers();
        }
    }
    __syncthreads();
    let_next_kernel_start();
    if (group < wide_heads) {
        registers_up<most_registers>();
        wide_multiply<shape>(p, layout, first_head, first_column, begin, end, group);
    } else {
        registers_down<least_registers>();
        const int unpacker = group - wide_heads;
        wide_unpack<shape>(p, layout, first_head, begin, end, unpacker % wide_heads, unpacker >= wide_heads);
    }
    wait_for_previous_kernel(); // whoever comes next takes what this launch has waited for as done
#endif
}

} // namespace turbo_cuda
