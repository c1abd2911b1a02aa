// Attention of short batches over codes of our own with warpgroup products, on sm_90a: heads of 128.
//
// A warpgroup walks a stretch of the cache for one KV head and all its columns (query heads x rows), in tiles of 64
// tokens. Tokens are the rows of the product that gives scores, values of the head those of the one that gives the
// output: so what is unpacked goes to the products from registers, and is unpacked once for all columns. The other
// operand lies in shared memory: queries, as signed bytes like those of a single row (attend_query.cuh), and
// probabilities as halves.

#pragma once

#include "attend_merge.cuh"
#include "batch_codes.cuh"
#include "batch_scores.cuh"
#include "rows_query.cuh"

namespace turbo_cuda {

#ifdef TURBO_WARPGROUP_PRODUCTS

// The part of the values (decode.cuh) that a warp unpacks. The last one of some formats takes longer, so that of each
// warpgroup is another one's: warps of the same number share a scheduler.
static __device__ __forceinline__ int own_part(int group, int warp) {
    return (group + warp) & 3;
}

// Formats that are not known are asked for in every tile.
template <int k_format, int v_format, class shape>
static __device__ __forceinline__ void batch_walk(const attend_params &p, const batch_layout<shape> &layout,
                                                  batch_ring &ring, const pending_rows &pending, int group,
                                                  int first_head, int number, int first_column, int begin, int end,
                                                  int first_run, batch_state<shape> &state) {
    constexpr int tiles = shape::tiles;
    using places = batch_layout<shape>;
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const char *const k = p.k.data + blockIdx.z * p.k.stride_stream, *const v =
                                                                         p.v.data + blockIdx.z * p.v.stride_stream;
    const int head = first_head + number, part = own_part(group, warp);
    const tile_rows k_rows = staged_rows(p.k, k, head, 16 * warp + g), v_rows = staged_rows(p.v, v, head, g);
    lane_codes k_codes = with_codes<k_format>(
                   p.k.format, [&](auto format) { return key_codes<decltype(format)::value>::find(k_rows.first, t); }),
               v_codes = with_codes<v_format>(p.v.format, [&](auto format) {
                   return value_codes<decltype(format)::value>::find(v_rows.first, t, part);
               });
    const product_operand queries = product_operand::at(layout.queries(number)),
                          probabilities = product_operand::at(layout.group(p, group));
    // Addresses in shared memory, so that the rest of each is a constant.
    uint32_t mine = shared_address(layout.group(p, group)), scales = shared_address(layout.scales(p, number)) + 8 * t;
    uint32_t shown = mine + g * 128 + ((2 * warp ^ g) << 4) + 4 * t; // of the first eight tokens
    keep(scales), keep(shown), k_codes.keep(), v_codes.keep();
    const uint32_t tops = mine + places::maxima_at;
    batch_mask mask(p, first_column, shape::columns, begin, warp, mine + places::mask_at + threadIdx.x % 128 * 16);
    const bool fetches = threadIdx.x == (group - number) * 128;
    int other = 0; // bytes on to the probabilities of this tile
    if (begin < end) {
        mask.look(p, begin);
    }
#pragma unroll 1
    for (int first = begin; first < end; first += shape::keys, other = places::operand_bytes - other) {
        const uint8_t *const tile = ring.take(p);
        int32_t s[tiles][4];
        {
            uint32_t a[4][4];
            with_codes<k_format>(p.k.format, [&](auto format) {
                key_codes<decltype(format)::value>::operand(a, layout.k_table(p), k_codes.in(tile), k_rows.step);
            });
            hold(s);
            products_begin();
#pragma unroll
            for (int step = 0; step < 4; step++) {
                product_bytes(s, a[step], queries + 32 * step, step > 0);
            }
            products_commit();
        }
        // Meanwhile: block scales. What lies beyond the end may be any number, or none: its probability is 0, and stays
        // it.
        float k_scale[2], v_scale[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float k_stored = with_codes<k_format>(p.k.format, [&](auto format) {
                return key_codes<decltype(format)::value>::scale(tile, k_codes.scale + h * k_rows.step);
            });
            const float v_stored = with_codes<v_format>(p.v.format, [&](auto format) {
                return key_codes<decltype(format)::value>::scale(tile + p.slot_bytes,
                                                                 v_codes.scale + (2 * warp + h) * v_rows.step);
            });
            k_scale[h] = fminf(k_stored, 65504.0f), v_scale[h] = fminf(fabsf(v_stored), 65504.0f);
        }
        if (fetches && first > begin) {
            ring.refill(p, pending, first - shape::keys, end);
        }
        __syncwarp();
        const bool whole = first + shape::keys <= end; // and so before the end of the mask
        const bool usual = whole && p.soft_cap == 0.0f && (p.mask == nullptr || (mask.quick && mask.clear()));
        if (first + shape::keys < end) {
            mask.look(p, first + shape::keys);
        }
        // What the tile's run adds; where scores are bent, before that.
        const uint32_t run =
            p.run_room == 0 ? 0 : scales + (1 + p.runs.run_of(first) - first_run) * shape::columns * sizeof(float);
        products_wait();
        hold(s);

        const auto add_of = [&](int n) {
            return run != 0 && p.soft_cap == 0.0f ? load_shared_floats(run + 32 * n) : make_float2(0.0f, 0.0f);
        };
        // The exponents, relative to `down`.
        const auto exponents = [&](float (&x)[tiles][4], const float (&down)[tiles][2]) {
#pragma unroll
            for (int n = 0; n < tiles; n++) {
                const float2 unit = load_shared_floats(scales + 32 * n);
                const float2 add = add_of(n);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    x[n][i] = fmaf((float) s[n][i] * k_scale[i / 2], i & 1 ? unit.y : unit.x,
                                   usual ? (i & 1 ? add.y : add.x) - down[n][i & 1] : 0.0f);
                }
            }
            if (!usual) {
                float in_memory[tiles][4]; // only here
#pragma unroll
                for (int i = 0; i < 4 * tiles; i++) {
                    (&in_memory[0][0])[i] = (&x[0][0])[i];
                }
                limit_batch<shape>(in_memory, p, first_column, run, first + 16 * warp + g, end);
#pragma unroll
                for (int n = 0; n < tiles; n++) {
                    const float2 add = add_of(n);
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        x[n][i] = in_memory[n][i] + ((i & 1 ? add.y : add.x) - down[n][i & 1]);
                    }
                }
            }
        };
        float sum[tiles][2];
#pragma unroll 1
        for (int again = 0; again < 2; again++) {
            float x[tiles][4];
            exponents(x, state.reference);
            __half2 top = __float2half2_rn(0.0f);
#pragma unroll
            for (int n = 0; n < tiles; n++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    x[n][i] = exp2_fast(x[n][i]);
                }
                sum[n][0] = x[n][0] + x[n][2], sum[n][1] = x[n][1] + x[n][3];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const uint32_t two = two_halves(x[n][2 * h] * v_scale[h], x[n][2 * h + 1] * v_scale[h]);
                    top = __hmax2_nan(top, as_half2(two));
                    store_shared((h == 0 ? shown : shown ^ 16) + other + n * 1024, transpose_8x8(two));
                }
            }
            products_see_memory();
            if (!barrier_any(1 + group, 128, !__hble2(top, __float2half2_rn(most_probable)))) {
                break;
            }
            float none[tiles][2] = {};
            exponents(x, none);
#pragma unroll
            for (int i = 0; i < 4 * tiles; i++) {
                (&x[0][0])[i] += __log2f(fmaxf(v_scale[i % 4 / 2], 0x1p-24f)); // or zeros would be lost
            }
            show_largest<shape>(x, tops + own_column<shape>() * 4);
            barrier(1 + group, 128);
            move_references(tops + 8 * t, state);
            barrier(1 + group, 128);
            clear_largest<shape>(tops); // seen before the barrier that comes first
        }
#pragma unroll
        for (int i = 0; i < 2 * tiles; i++) {
            state.sum[i / 2][i % 2] += sum[i / 2][i % 2];
        }
        values_operand a;
        with_codes<v_format>(p.v.format, [&](auto format) {
            value_codes<decltype(format)::value>::operand(a, layout.v_table(p), v_codes.in(tile + p.slot_bytes),
                                                          v_rows.step, part);
        });
        ring.release();
        hold(state.out[0]);
        hold(state.out[1]);
        products_begin();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            product_halves(state.out[0], a[0][i], probabilities + (other + 32 * i));
            product_halves(state.out[1], a[1][i], probabilities + (other + 32 * i));
        }
        products_commit();
        products_wait();
        hold(state.out[0]);
        hold(state.out[1]);
        ring.next();
    }
}

// A warpgroup's results, to be merged with those of other stretches.
template <class shape> static __device__ __forceinline__ void store_batch(const attend_params &p,
                                                                          const batch_layout<shape> &layout, int group,
                                                                          int head, int first_column, int split,
                                                                          const batch_state<shape> &state) {
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    float *const sums = reinterpret_cast<float *>(layout.group(p, group) + batch_layout<shape>::sums_at);
    const auto place = [&](int column) {
        return ((int64_t) (blockIdx.z * p.n_head_kv + head) * p.n_columns + column) * p.splits + split;
    };
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float sum = state.sum[n][c];
#pragma unroll
            for (int step = 4; step <= 16; step *= 2) {
                sum += __shfl_xor_sync(0xffffffffu, sum, step);
            }
            if (g == 0) {
                sums[warp * shape::columns + 8 * n + 2 * t + c] = sum;
            }
            const int column = first_column + 8 * n + 2 * t + c;
            if (column >= p.n_columns) {
                continue;
            }
            float *to = p.partial + place(column) * shape::head_dim;
#pragma unroll
            for (int chunk = 0; chunk < 2; chunk++) {
                *reinterpret_cast<float2 *>(to + value_of(chunk, own_part(group, warp), g)) =
                    make_float2(state.out[chunk][n][c], state.out[chunk][n][c + 2]);
            }
        }
    }
    barrier(1 + group, 128);
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int in_tile = 8 * n + 2 * t + c;
            if (n % 4 == warp && g == 0 && first_column + in_tile < p.n_columns) {
                const float sum = sums[in_tile] + sums[shape::columns + in_tile] + sums[2 * shape::columns + in_tile] +
                                  sums[3 * shape::columns + in_tile];
                *reinterpret_cast<float2 *>(p.partial_ml + 2 * place(first_column + in_tile)) =
                    make_float2(state.reference[n][c], sum);
            }
        }
    }
}
#endif

template <class shape> static __global__ void __launch_bounds__(batch_threads, 1)
    attend_batch_kernel(const __grid_constant__ attend_params p) {
#ifdef TURBO_WARPGROUP_PRODUCTS
    extern __shared__ __align__(16) uint8_t shared[];
    const batch_layout<shape> layout = {shared + (-shared_address(shared) & 1023u)};
    const int group = __shfl_sync(0xffffffffu, threadIdx.x / 128, 0); // the compiler sees that it is uniform
    const int team = p.by_heads.divide(group), number = group - team * p.heads_per_block;
    const bool active = team < p.groups;
    const int head_chunk = p.column_blocks == 1 ? blockIdx.y : blockIdx.y / p.column_blocks;
    const int first_head = head_chunk * p.heads_per_block;
    const int first_column = (blockIdx.y - head_chunk * p.column_blocks) * shape::columns;
    const auto start_of = [&](int split) { return batch_keys * (split * p.split_units + min(split, p.split_rest)); };
    const int split = blockIdx.x * p.groups + team, begin = start_of(split),
              end = active ? min(start_of(split + 1), p.n_kv) : 0;
    const int block_begin = start_of(blockIdx.x * p.groups), block_end = start_of((blockIdx.x + 1) * p.groups),
              first_run = p.runs.run_of(block_begin), n_runs = runs_touched(p, first_run, block_end);
    if (p.run_room > 0) {
        prefetch_runs(p, first_head * shape::head_dim, p.heads_per_block * shape::head_dim, first_run, n_runs,
                      batch_threads / 32);
    }
    batch_ring ring = layout.ring(p, team);
    const pending_rows pending(p.pending);
    if (active && number == 0 && threadIdx.x % 128 == 0) {
        ring.init_barriers();
        phases_ready();
        if (!p.inputs_ready || !pending.known()) {
            wait_for_previous_kernel();
        }
        for (int i = 0; i < ring.slots && begin + i * batch_keys < end; i++) {
            const int first = begin + i * batch_keys;
            ring.fetch(p, pending, i, first, min(batch_keys, end - first));
        }
    }
    __syncwarp();
    fill_pair_table(p.k.format, layout.k_table(p), threadIdx.x, batch_threads);
    if (shape::family < 0 && p.v.format != p.k.format) {
        fill_pair_table(p.v.format, layout.v_table(p), threadIdx.x, batch_threads);
    }
    clear_largest<shape>(shared_address(layout.group(p, group)) + batch_layout<shape>::maxima_at);
    if (!p.inputs_ready) {
        wait_for_previous_kernel();
    }
    const run_sums sums = {first_run, n_runs, layout.scales(p, 0) + shape::columns, (1 + p.run_room) * shape::columns,
                           shape::columns};
    prepare_columns<shape>(p, first_head, first_column, shape::columns, p.heads_per_block * shape::columns,
                           threadIdx.x / 16, batch_threads / 16, sums,
                           [&](int head, int in_head, const auto &x, float factor, float scale) {
                               store_query_bytes(layout.queries(head), in_head, x[0], factor * 127.0f);
                               if (threadIdx.x % 16 == 0) {
                                   layout.scales(p, head)[in_head] = scale * (code_part / 127.0f);
                               }
                           });
    products_see_memory();
    __syncthreads();
    let_next_kernel_start();
    if (active) {
        batch_state<shape> state = {};
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            state.reference[n][0] = state.reference[n][1] = lowest_score;
        }
        const auto walk = [&](auto k_format, auto v_format) {
            batch_walk<decltype(k_format)::value, decltype(v_format)::value>(
                p, layout, ring, pending, group, first_head, number, first_column, begin, end, first_run, state);
        };
        if constexpr (shape::family >= 0) {
            walk(format_tag<(shape::family & 15)>(), format_tag<(shape::family >> 4)>());
        } else if (shape::family == family_each && p.k.format == p.v.format) {
            with_codes<family_any>(p.k.format, [&](auto format) { walk(format, format); });
        } else {
            walk(format_tag<family_any>(), format_tag<family_any>());
        }
        store_batch<shape>(p, layout, group, first_head + number, first_column, split, state);
    }
    wait_for_previous_kernel(); // whoever comes next takes what this launch has waited for as done
#endif
}

} // namespace turbo_cuda
