// Attention of many columns (query heads x rows of a KV head) with warpgroup products: short batches over a long cache,
// on sm_90a.
//
// A thread block has two KV heads and 64 columns of each. Four warpgroups unpack tiles of K and V to f16 in shared
// memory; two multiply, each for a head, whose output they accumulate over the whole share of the cache, so nothing is
// merged before the thread blocks along the cache are. Scores have the columns as rows of the product: probabilities
// stay in registers as the operand of the second one.

#pragma once

#include "attend_merge.cuh"
#include "rows_query.cuh"
#include "rows_tile.cuh"
#include "wide_stage.cuh"

namespace turbo_cuda {

#ifdef TURBO_WARPGROUP_PRODUCTS

// Unpack one head's share of the cache, K or V, tile by tile. The first of all threads that do also fetches.
template <class shape>
static __device__ __forceinline__ void wide_unpack(const attend_params &p, const wide_layout<shape> &layout,
                                                   int first_head, int begin, int end, int number, bool value) {
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

// Running state of a warp's columns g and g + 8: the reference of their probabilities, what these add up to (all of a
// column's four lanes, twice), and the output, as rows_state has it.
template <class shape> struct wide_state {
    float reference[2], sum[4], out[shape::chunks][4];
};

// The mask of a warp's columns. Most tiles of a long cache are not masked at all: whether the next one is, is asked
// while this one is being worked on. What comes goes to shared memory, registers are short.
template <class shape> struct wide_mask {
    static constexpr int lanes = shape::keys / 8, rows_at_once = 32 / lanes; // 16 bytes a lane
    static constexpr uint32_t nothing = ~0u;
    uint32_t at;    // byte of the stream's mask from which this lane fetches for a tile that begins at token 0
    uint32_t ahead; // where to, in shared memory
    bool quick;

    static __device__ __forceinline__ const char *stream(const attend_params &p) {
        return p.mask + blockIdx.z * p.mask_stride_stream;
    }
    // The row of the warp's first column; null without a mask.
    static __device__ __forceinline__ const char *row(const attend_params &p, int column) {
        return p.mask == nullptr ? nullptr
                                 : stream(p) + p.by_gqa.divide(min(column, p.n_columns - 1)) * p.mask_stride_row;
    }
    __device__ __forceinline__ wide_mask(const attend_params &p, int column, uint8_t *shared) {
        const int first = p.by_gqa.divide(min(column, p.n_columns - 1)), lane = threadIdx.x & 31,
                  last = p.by_gqa.divide(min(column + shape::columns, p.n_columns) - 1);
        uint4 *mine = reinterpret_cast<uint4 *>(shared) + threadIdx.x % warpgroup;
        quick = p.mask != nullptr && column < p.n_columns && last - first < rows_at_once &&
                ((reinterpret_cast<uintptr_t>(stream(p)) | p.mask_stride_row) & 15) == 0;
        at = quick && lane / lanes <= last - first
                 ? (first + lane / lanes) * (uint32_t) p.mask_stride_row + lane % lanes * 16
                 : nothing;
        ahead = shared_address(mine);
        *mine = make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void look(const attend_params &p, int first) const {
        if (at != nothing && first + shape::keys <= p.n_kv) {
            copy_async_16(ahead, stream(p) + at + first * 2);
        }
    }
    // Is nothing of the tile masked that was looked at last?
    __device__ __forceinline__ bool clear(const attend_params &p, int first) const {
        copy_async_wait_all();
        const uint4 x = load_shared_16(ahead);
        return !__any_sync(0xffffffffu, (x.x | x.y | x.z | x.w) != 0) && first + shape::keys <= p.n_kv;
    }
};

// Scores times `factor`, plus what the tile's run adds to them, become probabilities (probability_shift, most_growth:
// as in rows_tile.cuh). Nearly always the reference stays, so they are made with it first; if one comes out too large,
// it is moved and they are made again.
template <class shape>
static __device__ __forceinline__ void wide_soften(uint32_t (&p)[shape::keys / 8][2],
                                                   const float (&s)[1][shape::keys / 8][4], const float (&factor)[2],
                                                   const float (&run)[2], wide_state<shape> &state) {
    auto soften = [&]() {
        __half2 top = __float2half2_rn(0.0f);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float offset = probability_shift - state.reference[h] + run[h];
#pragma unroll
            for (int n = 0; n < shape::keys / 8; n++) {
                p[n][h] = two_halves(exp2_fast(fmaf(s[0][n][2 * h], factor[h], offset)),
                                     exp2_fast(fmaf(s[0][n][2 * h + 1], factor[h], offset)));
                top = __hmax2(top, as_half2(p[n][h]));
            }
        }
        return fmaxf(__low2float(top), __high2float(top)) > exp2f(probability_shift + most_growth);
    };
    if (!__any_sync(0xffffffffu, soften())) {
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float x = fmaxf(s[0][0][2 * h], s[0][0][2 * h + 1]);
#pragma unroll
        for (int n = 1; n < shape::keys / 8; n++) {
            x = fmaxf(x, fmaxf(s[0][n][2 * h], s[0][n][2 * h + 1]));
        }
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
        x = fmaf(fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2)), factor[h], run[h]);
        const float reference = fmaxf(x, state.reference[h]), scale = exp2_fast(state.reference[h] - reference);
        state.reference[h] = reference;
        state.sum[2 * h] *= scale, state.sum[2 * h + 1] *= scale;
#pragma unroll
        for (int c = 0; c < shape::chunks; c++) {
            state.out[c][2 * h] *= scale, state.out[c][2 * h + 1] *= scale;
        }
    }
    soften();
}

// Put what a run adds, and the factor, into scores that are to be changed further.
template <class shape>
static __device__ __forceinline__ void add_run(float (&s)[shape::keys / 8][4], float (&factor)[2], float (&run)[2]) {
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
        for (int n = 0; n < shape::keys / 8; n++) {
            s[n][2 * h] = fmaf(s[n][2 * h], factor[h], run[h]);
            s[n][2 * h + 1] = fmaf(s[n][2 * h + 1], factor[h], run[h]);
        }
        factor[h] = 1.0f, run[h] = 0.0f;
    }
}

// The scores of a tile of K, begun.
template <class shape> static __device__ __forceinline__ void begin_scores(float (&s)[shape::keys / 8][4],
                                                                           product_operand queries, product_operand k) {
    products_begin();
#pragma unroll
    for (int step = 0; step < 8; step++) {
        product_64(s, queries + (step / 4 * wide_columns * 128 + step % 4 * 32),
                   k + (step / 4 * shape::keys * 128 + step % 4 * 32), step > 0);
    }
    products_commit();
}

// Its part of the output, begun.
template <class shape> static __device__ __forceinline__ void begin_values(wide_state<shape> &state,
                                                                           const uint32_t (&p)[shape::keys / 8][2],
                                                                           product_operand v, product_operand ones) {
    hold(state.out);
    hold(state.sum);
    products_begin();
#pragma unroll
    for (int step = 0; step < shape::keys / 16; step++) {
        const uint32_t a[4] = {p[2 * step][0], p[2 * step][1], p[2 * step + 1][0], p[2 * step + 1][1]};
        product_64<0>(state.out, a, v + step * 2048);
        product_64<8>(state.out, a, v + (step * 2048 + shape::keys * 128));
        product_64(state.sum, a, ones);
    }
    products_commit();
}

// Products of one head with its tiles; the result goes to the partial ones.
template <class shape>
static __device__ __forceinline__ void wide_multiply(const attend_params &p, const wide_layout<shape> &layout,
                                                     int first_head, int first_column, int begin, int end, int number) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int column = first_column + 16 * warp; // the warp's first one
    if (number >= p.heads_per_block) {
        return;
    }
    if (!p.inputs_ready) {
        wait_for_previous_kernel();
    }
    const int first_run = p.runs.run_of(begin);
    const run_sums sums = {first_run, runs_touched(p, first_run, end), layout.run_sums(p, number), 0, wide_columns};
    prepare_columns<shape>(
        p, first_head + number, first_column, wide_columns, wide_columns, threadIdx.x % warpgroup / 16, warpgroup / 16,
        sums, [&](int, int in_head, const auto &x, float factor, float scale) {
            const int value = lane % 16 * 8, chunk = value % 32 / 8 * 4 + value / 32; // its 16 bytes
            uint8_t *to = layout.queries(number) + chunk / 8 * wide_columns * 128 + in_head * 128 +
                          ((chunk % 8 ^ in_head % 8) << 4);
            *reinterpret_cast<uint4 *>(to) = make_uint4(
                two_halves(x[0][0] * factor, x[0][1] * factor), two_halves(x[0][2] * factor, x[0][3] * factor),
                two_halves(x[0][4] * factor, x[0][5] * factor), two_halves(x[0][6] * factor, x[0][7] * factor));
            if (lane % 16 == 0) {
                layout.scales(p, number)[in_head] = scale;
            }
        });
    for (int i = threadIdx.x % warpgroup; i < 256; i += warpgroup) {
        reinterpret_cast<uint32_t *>(layout.ones(p))[i] = half2_bits(__float2half2_rn(1.0f));
    }
    products_see_memory();
    barrier(2 + number, warpgroup);

    wide_state<shape> state = {};
    float scales[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        state.reference[i] = lowest_score;
        scales[i] = layout.scales(p, number)[16 * warp + 8 * i + g];
    }
    const bool used = column < p.n_columns;
    const wide_mask<shape> mask(p, column, layout.mask(p, number));
    if (begin < end) {
        mask.look(p, begin);
    }
    const float *run_sum = sums.to + 16 * warp + g;
    wide_ring ring = layout.ring(p, number);
    const product_operand queries = product_operand::at(layout.queries(number)),
                          tiles = product_operand::at(ring.tiles), ones = product_operand::at(layout.ones(p));
    auto release = [&](int place) {
        if (lane == 0) {
            phase_arrive(ring.free + place);
        }
    };
    float s[1][shape::keys / 8][4];
    uint32_t probabilities[shape::keys / 8][2] = {};
    // Scores of the next tile are begun before this one's part of the output is done. Those behind the last one are of
    // whatever lies there, and nobody looks at them: so the compiler sees that products follow each other at all times.
    if (begin < end) {
        ring.wait_full();
    }
    hold(state.out);
    hold(state.sum);
    hold(s[0]);
    begin_scores<shape>(s[0], queries, tiles + ring.place * shape::tile_bytes);
    int v_place = -1;
#pragma unroll 1
    for (int first = begin; first < end; first += shape::keys) {
        products_wait();
        if (v_place >= 0) {
            release(v_place);
        }
        hold(s[0]);
        hold(state.out);
        hold(state.sum);
        release(ring.place);
        ring.next(1);
        if (used) {
            const bool clear = p.mask == nullptr || (mask.quick && mask.clear(p, first));
            if (first + shape::keys < end) {
                mask.look(p, first + shape::keys);
            }
            float factor[1][2] = {{scales[0], scales[1]}}, run[2] = {0.0f, 0.0f};
            if (p.run_room > 0) {
                const float *to_add = run_sum + (p.runs.run_of(first) - first_run) * wide_columns;
                run[0] = to_add[0], run[1] = to_add[8];
            }
            if (!clear || p.soft_cap != 0.0f || first + shape::keys > end) {
                add_run<shape>(s[0], factor[0], run);
                limit_rows<shape>(s, factor, p, mask.row(p, column), first, end, column);
            }
            wide_soften<shape>(probabilities, s, factor[0], run, state);
        }
        ring.wait_full();
        v_place = ring.place;
        begin_values<shape>(state, probabilities, tiles + v_place * shape::tile_bytes, ones);
        ring.next(1);
        if (first + shape::keys < end) {
            ring.wait_full();
        }
        begin_scores<shape>(s[0], queries, tiles + ring.place * shape::tile_bytes);
    }
    products_wait();
    hold(state.out);
    hold(state.sum);
    const float sum_unit = exp2_fast(-probability_shift),
                unit = p.v.format <= KV_TURBO4_TCQ ? sum_unit / code_part : sum_unit * half_weight;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        if (column + 8 * i + g >= p.n_columns) {
            continue;
        }
        const int64_t at =
            ((int64_t) (blockIdx.z * p.n_head_kv + first_head + number) * p.n_columns + column + 8 * i + g) * p.splits +
            blockIdx.x;
        if (t == 0) {
            *reinterpret_cast<float2 *>(p.partial_ml + 2 * at) =
                make_float2(state.reference[i], state.sum[2 * i] * sum_unit);
        }
#pragma unroll
        for (int c = 0; c < shape::chunks; c++) {
            const int value = c % 4 * 32 + c / 4 * 8 + 2 * t;
            *reinterpret_cast<float2 *>(p.partial + at * shape::head_dim + value) =
                make_float2(state.out[c][2 * i] * unit, state.out[c][2 * i + 1] * unit);
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
    const int units = p.split_units + (split < p.split_rest ? 1 : 0);
    const int begin = wide_unit * first_unit, end = min(begin + wide_unit * units, p.n_kv);
    if (p.run_room > 0) {
        const int first_run = p.runs.run_of(begin);
        prefetch_runs(p, first_head * shape::head_dim, p.heads_per_block * shape::head_dim, first_run,
                      runs_touched(p, first_run, end), wide_threads / 32);
    }
    if (threadIdx.x == 0) {
        layout.stage(p).init_barriers();
        for (int i = 0; i < wide_heads; i++) {
            layout.ring(p, i).init_barriers();
        }
    }
    __syncthreads();
    let_next_kernel_start();
    if (group < wide_heads) {
        registers_up<shape::most_registers>();
        wide_multiply<shape>(p, layout, first_head, first_column, begin, end, group);
    } else {
        registers_down<shape::least_registers>();
        const int unpacker = group - wide_heads;
        wide_unpack<shape>(p, layout, first_head, begin, end, unpacker % wide_heads, unpacker >= wide_heads);
    }
    wait_for_previous_kernel(); // whoever comes next takes what this launch has waited for as done
#endif
}

} // namespace turbo_cuda
