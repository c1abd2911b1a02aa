// The walk of the attention kernel (attend_kernel.cuh): a thread block walks a stretch of the cache for some KV heads of
// one stream.
//
// Its warps form groups of one warp a head. A group owns a ring of shared-memory slots (stage.cuh) and walks every
// groups-th tile of shape::keys tokens: K of a tile, then V of it. A warp keeps the running maximum, sum and output
// of its head's columns in registers, all in the rotated domain; groups are merged in shared memory at the end.

#pragma once

#include "attend_q8.cuh"
#include "attend_query.cuh"
#include "attend_scores.cuh"
#include "run_products.cuh"

namespace turbo_cuda {

// A lane's rows of every tile of a tensor, relative to the slot; tiles begin at a multiple of 16 tokens, so one answer
// holds for all of them. `row`: the lane's one of eight.
static __device__ __forceinline__ tile_rows staged_rows(const stage_params &p, const char *source, int head, int row) {
    tile_rows rows;
    rows.shared = nullptr;
    rows.first = head * p.head_bytes + row * p.pitch +
                 (p.contiguous ? address_skew(source) : address_skew(source + row * p.stride_token));
    rows.step = 8 * p.pitch;
    return rows;
}

// What one unit of the accumulated V codes is worth in the output, the 1/sqrt(block) of the rotation included.
template <int block_values> static __device__ __forceinline__ float value_unit(int format) {
    switch (format) {
        case KV_TURBO2: return format_turbo2::unit(block_values);
        case KV_TURBO3: return format_turbo3::unit(block_values);
        case KV_TURBO4: return format_turbo4::unit(block_values);
        case KV_TURBO2_TCQ: return format_turbo2_tcq::unit(block_values);
        case KV_TURBO3_TCQ: return format_turbo3_tcq::unit(block_values);
        case KV_TURBO4_TCQ: return format_turbo4_tcq::unit(block_values);
        default: return 1.0f / half_weight;
    }
}

// And what that unit counts in column_state::out.
static __device__ __forceinline__ float output_unit(const attend_params &p) {
    return p.v.format <= KV_TURBO4_TCQ ? code_unit : 1.0f;
}

// One tile of K: scores by the format's reader. The switch is uniform over the block and taken once a tile.
template <class shape> static __device__ __forceinline__ void
scores_by_format(float (&s)[shape::slices][shape::tiles][4], const stage_params &k, const uint8_t *table,
                 const tile_rows &rows, int count, const uint4 *fragments, const float *scales, const float *sums) {
    constexpr int n = shape::values_per_lane;
    if constexpr (shape::k_format == KV_Q8_0) {
        return tile_scores_q8<shape>(s, rows, fragments, scales);
    } else if constexpr (shape::one_pair) {
        using reader = typename key_reader_of<shape::k_format, n, shape::look_up>::type;
        return tile_scores<reader, shape>(s, reader(table), rows, count, k.block_bytes, fragments, scales, sums);
    }
#define TURBO_SCORES(KV, reader)                                                                                       \
    case KV: tile_scores<reader, shape>(s, reader(table), rows, count, k.block_bytes, fragments, scales, sums); break
    if constexpr (shape::family == family_any) {
        using trellis2 = reader_trellis<format_turbo2_tcq, n>;
        using trellis3 = reader_trellis<format_turbo3_tcq, n>;
        using trellis4 = reader_trellis<format_turbo4_tcq, n>;
        switch (k.format) {
            TURBO_SCORES(KV_TURBO2_TCQ, trellis2);
            TURBO_SCORES(KV_TURBO3_TCQ, trellis3);
            TURBO_SCORES(KV_TURBO4_TCQ, trellis4);
            case KV_F16:
                tile_scores_half<reader_f16<n>, shape>(s, rows, count, k.block_bytes, fragments, scales);
                break;
            case KV_Q8_0:
                tile_scores_half<reader_q8_0<n>, shape>(s, rows, count, k.block_bytes, fragments, scales);
                break;
            case KV_Q4_0:
                tile_scores_half<reader_q4_0<n>, shape>(s, rows, count, k.block_bytes, fragments, scales);
                break;
        }
    }
    switch (k.format) {
        TURBO_SCORES(KV_TURBO2, reader_2bit<n>);
        TURBO_SCORES(KV_TURBO3, reader_3bit<n>);
        TURBO_SCORES(KV_TURBO4, reader_4bit_rounded<n>);
    }
#undef TURBO_SCORES
}

template <class shape> static __device__ __forceinline__ void
values_by_format(column_state<shape> &state, const stage_params &v, const uint8_t *table, const tile_rows &rows,
                 const tile_limits &limits, const float (&p)[shape::slices][shape::tiles][4],
                 const float (&weight)[shape::tiles][2]) {
    constexpr int n = shape::values_per_lane;
    if constexpr (shape::v_format == KV_Q8_0) {
        return tile_values_q8<shape>(state.out, rows, limits, p, weight);
    } else if constexpr (shape::one_pair) {
        using reader = typename value_reader_of<shape::v_format, n, shape::look_up>::type;
        return tile_values<reader, shape>(state, reader(table), rows, limits, v.block_bytes, p, weight);
    }
#define TURBO_VALUES(KV, reader)                                                                                       \
    case KV: tile_values<reader, shape>(state, reader(table), rows, limits, v.block_bytes, p, weight); break
    if constexpr (shape::family == family_any) {
        using trellis2 = reader_trellis<format_turbo2_tcq, n>;
        using trellis3 = reader_trellis<format_turbo3_tcq, n>;
        using trellis4 = reader_trellis<format_turbo4_tcq, n>;
        switch (v.format) {
            TURBO_VALUES(KV_TURBO2_TCQ, trellis2);
            TURBO_VALUES(KV_TURBO3_TCQ, trellis3);
            TURBO_VALUES(KV_TURBO4_TCQ, trellis4);
            case KV_F16:
                tile_values_half<reader_f16<n>, shape>(state.out, rows, limits, v.block_bytes, p, weight);
                break;
            case KV_Q8_0:
                tile_values_half<reader_q8_0<n>, shape>(state.out, rows, limits, v.block_bytes, p, weight);
                break;
            case KV_Q4_0:
                tile_values_half<reader_q4_0<n>, shape>(state.out, rows, limits, v.block_bytes, p, weight);
                break;
        }
    }
    if constexpr (!shape::one_pair) {
        switch (v.format) {
            using values2 = reader_2bit<n, unsigned_bias>;
            using values3 = reader_3bit<n, unsigned_bias>;
            TURBO_VALUES(KV_TURBO2, values2);
            TURBO_VALUES(KV_TURBO3, values3);
            TURBO_VALUES(KV_TURBO4, reader_4bit_rounded<n>);
        }
    }
#undef TURBO_VALUES
}

// Rotate and lay out the queries of the block: half a warp a column of a (head, column tile, block of the head). The
// first unit of each warp is loaded when the object is made and used when it is prepared.
template <class shape> struct query_loader {
    static constexpr int n = shape::block_values / 16;
    float x[n];
    int unit, first_head, first_column;

    __device__ __forceinline__ query_loader(const attend_params &p, int head, int column, int warp)
        : unit(warp), first_head(head), first_column(column) {
        load(p);
    }

    static __device__ __forceinline__ int units(const attend_params &p) {
        return p.heads_per_block * shape::tiles * shape::blocks * 4;
    }
    __device__ __forceinline__ int column_in_tile() const { return 2 * (unit & 3) + (threadIdx.x & 31) / 16; }

    __device__ __forceinline__ void load(const attend_params &p) {
        const int b = unit / 4 % shape::blocks, tile = unit / (4 * shape::blocks) % shape::tiles;
        const int column = first_column + 8 * tile + column_in_tile();
        const int head_kv = first_head + unit / (4 * shape::blocks * shape::tiles), row = p.by_gqa.divide(column),
                  head = head_kv * p.gqa + column - row * p.gqa;
        const char *source = p.q + blockIdx.z * p.q_stride_stream + row * p.q_stride_row + head * p.q_stride_head;
        const float4 *at =
            reinterpret_cast<const float4 *>(source) + (b * shape::block_values + (threadIdx.x & 15) * n) / 4;
#pragma unroll
        for (int i = 0; i < n / 4; i++) {
            const float4 v = unit < units(p) && column < p.n_columns ? at[i] : make_float4(0, 0, 0, 0);
            x[4 * i] = v.x, x[4 * i + 1] = v.y, x[4 * i + 2] = v.z, x[4 * i + 3] = v.w;
        }
        if (p.q_scale != nullptr && unit < units(p) && column < p.n_columns) {
            const float4 *scale =
                reinterpret_cast<const float4 *>(p.q_scale + head * shape::head_dim + b * shape::block_values) +
                (threadIdx.x & 15) * n / 4;
#pragma unroll
            for (int i = 0; i < n / 4; i++) {
                const float4 v = scale[i];
                x[4 * i] *= v.x, x[4 * i + 1] *= v.y, x[4 * i + 2] *= v.z, x[4 * i + 3] *= v.w;
            }
        }
    }

    // Where the keys of a head begin within 16 bytes, if that is the same for all tokens.
    __device__ __forceinline__ int key_skew(const attend_params &p, int head) const {
        return (int) address_skew(p.k.data + blockIdx.z * p.k.stride_stream + (first_head + head) * p.k.stride_head);
    }

    __device__ __forceinline__ void prepare_all(const attend_params &p, const shared_layout<shape> &layout,
                                                int first_run, int n_runs, int warps) {
#pragma unroll 1
        while (unit < units(p)) {
            const int block = unit / 4 % (shape::blocks * shape::tiles),
                      head = unit / (4 * shape::blocks * shape::tiles);
            if (p.run_room > 0) {
                const int value = (first_head + head) * shape::head_dim + block % shape::blocks * shape::block_values;
                const int row = shared_layout<shape>::scale_row(p);
                run_products<n>(x, p, value + (threadIdx.x & 15) * n, first_run, n_runs,
                                layout.scales(p, head) + shape::query_rows * row + 8 * block + column_in_tile(), row);
            }
            prepare_query<shape>(x, p.k.format <= KV_TURBO4_TCQ, p.score_scale, column_in_tile(),
                                 layout.fragments(head) + block * shape::fragments, layout.scales(p, head) + 8 * block,
                                 layout.query_sums(p, head) + 8 * block, key_skew(p, head));
            unit += warps;
            if (unit < units(p)) {
                load(p);
            }
        }
    }
};

// Walk the tokens first .. end - 1. The first two items are already on their way.
template <class shape>
static __device__ __forceinline__ void walk(const attend_params &p, item_ring &ring, const char *k, const char *v,
                                            mask_reader &mask, column_state<shape> &state, int first, int end, int head,
                                            int staged_head, int first_column, const shared_layout<shape> &layout) {
    const uint4 *fragments = layout.fragments(head);
    const float *scales = layout.scales(p, head), *sums = layout.query_sums(p, head);
    const pending_rows &pending = *layout.pending();
    const int row = (threadIdx.x & 31) >> 2;
    tile_rows k_rows = staged_rows(p.k, k, staged_head, row), v_rows = staged_rows(p.v, v, staged_head, row);
    for (; first < end; first += shape::keys) {
        const int next = first + shape::keys, next_count = max(0, min(shape::keys, end - next));
        const uint32_t pairs = mask.next;
        if (mask.ahead && next_count > 0) {
            mask.next = mask.load_pair<shape>(next, p.n_kv);
        }
        float s[shape::slices][shape::tiles][4], weight[shape::tiles][2], run[shape::tiles][2] = {};
        k_rows.shared = ring.take();
        ring.fetch(p.k, k, next, next_count);
        scores_by_format<shape>(s, p.k, layout.k_table(p), k_rows, end - first, fragments, scales, sums);
        ring.release();
        limit_scores<shape>(s, run, p, mask, pairs, first, first_column, scales, *layout.first_run());
        const bool skips = shape::reads_trellis && p.takes_newest && pending.concern(first, next);
        const tile_limits limits = {end - first, skips ? pending.low - first : shape::keys,
                                    skips ? pending.high - first : -1};
        if (!limits.whole<shape>()) {
            hide_unreal<shape>(s, limits);
        }
        const bool some = soften<shape>(s, run, state, weight);
        v_rows.shared = ring.take();
        ring.fetch(p.v, v, next, next_count);
        if (some) {
            values_by_format<shape>(state, p.v, layout.v_table(p), v_rows, limits, s, weight);
        }
        ring.release();
    }
    if constexpr (shape::v_format == KV_Q8_0) {
        state.skew = q8_skew(v_rows);
        settle_values_q8<shape>(state.out, state.skew);
    }
}

} // namespace turbo_cuda
