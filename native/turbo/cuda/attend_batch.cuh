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
#include "batch_stage.cuh"
#include "rows_query.cuh"

namespace turbo_cuda {

#ifdef TURBO_WARPGROUP_PRODUCTS

// Store a rotated query, of which each lane of half a warp has eight neighbouring values, as signed bytes in the order
// of key_operand: the four bytes of register h of a quarter's part are at 32 * part + 16 * h + 4 * quarter.
static __device__ __forceinline__ void store_query_bytes(uint8_t *queries, int column, const float (&x)[8],
                                                         float to_int) {
    const int lane = threadIdx.x & 15, quarter = lane / 4, part = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t rounded[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            // Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
            rounded[j] = __float_as_uint(fmaf(x[4 * h + j], to_int, 12582912.0f));
        }
        const int chunk = 2 * part + h;
        *reinterpret_cast<uint32_t *>(queries + column * 128 + ((chunk ^ column % 8) << 4) + 4 * quarter) =
            gather_bytes<0>(rounded);
    }
}

// The mask of a warp's 16 tokens. Most tiles of a long cache are not masked at all: whether the next one is, is asked
// while this one is being worked on. What comes goes to shared memory, registers are short.
struct batch_mask {
    static constexpr int rows_at_once = 16; // 16 bytes a lane
    const char *next;                       // from where this lane fetches for the tile it looks at next; null: nothing
    uint32_t ahead;                         // where to, in shared memory
    bool quick;

    static __device__ __forceinline__ const char *row(const attend_params &p, int column) {
        return p.mask + blockIdx.z * p.mask_stride_stream + p.by_gqa.divide(column) * p.mask_stride_row;
    }
    __device__ __forceinline__ batch_mask(const attend_params &p, int column, int columns, int begin, int warp,
                                          uint32_t shared)
        : next(nullptr), ahead(shared), quick(false) {
        store_shared_16(ahead, make_uint4(0, 0, 0, 0));
        if (p.mask != nullptr) {
            const int last = min(column + columns, p.n_columns) - 1, lane = threadIdx.x & 31,
                      rows = p.by_gqa.divide(last) - p.by_gqa.divide(column) + 1;
            const char *first = row(p, column);
            quick = rows <= rows_at_once && ((reinterpret_cast<uintptr_t>(first) | p.mask_stride_row) & 15) == 0;
            if (quick && lane / 2 < rows) {
                next = first + lane / 2 * p.mask_stride_row + (begin + 16 * warp + 8 * (lane & 1)) * 2;
            }
        }
    }
    // Ask for that of the tile from `first` on, tile by tile.
    __device__ __forceinline__ void look(const attend_params &p, int first) {
        if (next != nullptr && first + batch_keys <= p.n_kv) {
            copy_async_16(ahead, next);
            next += batch_keys * 2;
        }
    }
    // Is nothing of the warp's part of the tile masked that was looked at last?
    __device__ __forceinline__ bool clear() const {
        copy_async_wait_all();
        const uint4 x = load_shared_16(ahead);
        return !__any_sync(0xffffffffu, (x.x | x.y | x.z | x.w) != 0);
    }
};

// Running state of a warpgroup's columns 8n + 2t and 8n + 2t + 1: the exponent that their sums and outputs are relative
// to, the sum of the lane's tokens, and of chunk c of the output the values of value_of (i < 2) and those behind them.
template <class shape> struct batch_state {
    float reference[shape::tiles][2], sum[shape::tiles][2], out[2][shape::tiles][4];
};

// Probabilities times the scales of their values are halves, so they may not become too large: if one is more than
// most_probable, references move so that the largest is about 1 (exponents are compared as integers, in eighths). What
// is less than 2^-14 of that is less exact, what is less than 2^-25 is lost.
static constexpr float eighths = 8.0f, most_probable = 32768.0f;

// The column of a lane in show_largest, of the 2 * tiles that the eight lanes with its t have.
template <class shape> static __device__ __forceinline__ int own_column() {
    static_assert(shape::tiles <= 4, "one column a lane");
    const int lane = threadIdx.x & 31, mine = shape::tiles == 4
                                                  ? (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1)
                                                  : (lane >> 4 & 1) * 2 + (lane >> 3 & 1);
    return mine / 2 * 8 + 2 * (lane & 3) + mine % 2;
}
// Largest of each column over the warp's 16 tokens, to where it is kept, the lane's own column at `to`.
template <class shape>
static __device__ __forceinline__ void show_largest(const float (&y)[shape::tiles][4], uint32_t to) {
    constexpr int n = 2 * shape::tiles;
    const int lane = threadIdx.x & 31;
    float top[n];
#pragma unroll
    for (int i = 0; i < n; i++) {
        top[i] = fmaxf(y[i / 2][i % 2], y[i / 2][i % 2 + 2]);
    }
    // Halves of the eight lanes take over half of the columns, and so on until each has its own.
    int bit = 16;
#pragma unroll
    for (int keep = n / 2; keep > 0; keep /= 2, bit /= 2) {
        const bool upper = lane & bit;
#pragma unroll
        for (int i = 0; i < keep; i++) {
            const float sent = upper ? top[i] : top[keep + i];
            top[i] = fmaxf(upper ? top[keep + i] : top[i], __shfl_xor_sync(0xffffffffu, sent, bit));
        }
    }
    if (bit >= 4) {
        top[0] = fmaxf(top[0], __shfl_xor_sync(0xffffffffu, top[0], bit));
    }
    raise_shared(to, __float2int_ru(top[0] * eighths));
}

template <class shape> static __device__ __forceinline__ void clear_largest(uint32_t maxima) {
    if (threadIdx.x % 128 < shape::columns) {
        store_shared(maxima + threadIdx.x % 128 * 4, 0x80000000u);
    }
}

// The mask, the soft cap and the end of the cache on scores x of the tokens `token` and token + 8; `run`: where what
// their run adds to the lane's first columns lies, 0: it adds nothing.
template <class shape> static __device__ __noinline__ void
limit_batch(float (&x)[shape::tiles][4], const attend_params &p, int first_column, uint32_t run, int token, int end) {
    const int t = threadIdx.x & 3;
#pragma unroll 1
    for (int i = 0; i < 2 * shape::tiles; i++) {
        const int n = i / 2, c = i % 2, column = min(first_column + 8 * n + 2 * t + c, p.n_columns - 1);
        const __half *mask = p.mask == nullptr ? nullptr : reinterpret_cast<const __half *>(batch_mask::row(p, column));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float s = x[n][2 * h + c];
            if (p.soft_cap != 0.0f) {
                const float2 add = run == 0 ? make_float2(0.0f, 0.0f) : load_shared_floats(run + 32 * n);
                s = p.soft_cap * tanhf(s + (c == 0 ? add.x : add.y));
            }
            const int at = token + 8 * h;
            if (at >= end) {
                s = -INFINITY;
            } else if (mask != nullptr) {
                s += log2_e * __half2float(mask[at]);
            }
            x[n][2 * h + c] = s;
        }
    }
}

// Move the references of columns whose largest exponents in a tile, in eighths from `largest` on, have grown beyond
// them.
template <class shape>
static __device__ __forceinline__ void move_references(uint32_t largest, batch_state<shape> &state) {
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
        const int2 top = load_shared_ints(largest + 32 * n);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float exponent = (float) (c == 0 ? top.x : top.y) * (1.0f / eighths),
                        reference = fmaxf(exponent, state.reference[n][c]),
                        scale = exp2_fast(state.reference[n][c] - reference);
            state.reference[n][c] = reference;
            state.sum[n][c] *= scale;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                state.out[i / 2][n][i % 2 * 2 + c] *= scale;
            }
        }
    }
}

// The part of the values (decode.cuh) that a warp unpacks. The last one of some formats takes longer, so that of each
// warpgroup is another one's: warps of the same number share a scheduler.
static __device__ __forceinline__ int own_part(int group, int warp) {
    return (group + warp) & 3;
}

template <class shape>
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
    lane_codes k_codes = with_codes<shape::k_format>(
                   p.k.format, [&](auto format) { return key_codes<decltype(format)::value>::find(k_rows.first, t); }),
               v_codes = with_codes<shape::v_format>(p.v.format, [&](auto format) {
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
            with_codes<shape::k_format>(p.k.format, [&](auto format) {
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
            const float k_stored = with_codes<shape::k_format>(p.k.format, [&](auto format) {
                return key_codes<decltype(format)::value>::scale(tile, k_codes.scale + h * k_rows.step);
            });
            const float v_stored = with_codes<shape::v_format>(p.v.format, [&](auto format) {
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
        with_codes<shape::v_format>(p.v.format, [&](auto format) {
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
    if (shape::k_format == family_any && p.v.format != p.k.format) {
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
        batch_walk<shape>(p, layout, ring, pending, group, first_head, number, first_column, begin, end, first_run,
                          state);
        store_batch<shape>(p, layout, group, first_head + number, first_column, split, state);
    }
    wait_for_previous_kernel(); // whoever comes next takes what this launch has waited for as done
#endif
}

} // namespace turbo_cuda
