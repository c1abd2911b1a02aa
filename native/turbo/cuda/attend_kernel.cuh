// The attention kernel: a thread block walks a stretch of the cache for some KV heads of one stream.
//
// Its warps form groups of one warp a head. A group owns a ring of shared-memory slots (stage.cuh) and walks every
// groups-th tile of shape::keys tokens: K of a tile, then V of it. A warp keeps the running maximum, sum and output
// of its head's columns in registers, all in the rotated domain; groups are merged in shared memory at the end.

#pragma once

#include "attend_query.cuh"
#include "attend_q8.cuh"
#include "run_products.cuh"
#include "stage.cuh"

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

// Running state of the columns 2t, 2t+1 of each tile.
template <class shape> struct column_state {
    float maximum[shape::tiles][2], sum[shape::tiles][2];
    float out[shape::blocks][shape::outputs][shape::tiles][4];
    int skew; // of q8_0 values, after the walk (attend_q8.cuh)
};

// The mask of a tile, fetched one tile ahead where all columns share one row of it: lane l holds tokens 2l and 2l + 1.
struct mask_reader {
    const char *row; // of the first column; null without a mask
    bool ahead;      // one shared row, 4-byte aligned
    uint32_t next;

    template <class shape> __device__ __forceinline__ uint32_t load_pair(int first, int n_kv) const {
        const int key = 2 * (threadIdx.x & 31);
        const uint16_t *at = reinterpret_cast<const uint16_t *>(row) + first + key;
        if (key >= shape::keys || first + key >= n_kv) {
            return key >= shape::keys ? 0u : 0xfc00fc00u;
        }
        return first + key + 1 < n_kv ? *reinterpret_cast<const uint32_t *>(at) : at[0] | 0xfc000000u;
    }
};

// Hide tokens past the end of the cache, and those that are taken from elsewhere.
template <class shape> static __device__ __forceinline__ void hide_unreal(float (&s)[shape::slices][shape::tiles][4],
                                                                          const tile_limits &limits) {
    const int g = (threadIdx.x & 31) >> 2;
#pragma unroll
    for (int i = 0; i < 4 * shape::slices * shape::tiles; i++) {
        float &x = (&s[0][0][0])[i];
        x = limits.real(i / (4 * shape::tiles) * 16 + g + (i & 2) * 4) ? x : -INFINITY;
    }
}

// Scores become probabilities relative to the tile's own maximum; weight is what the tile counts in the running output.
// `run` is added to all scores of a column. Returns false if every score of the tile is masked.
template <class shape> static __device__ __forceinline__ bool soften(float (&s)[shape::slices][shape::tiles][4],
                                                                     const float (&run)[shape::tiles][2],
                                                                     column_state<shape> &state,
                                                                     float (&weight)[shape::tiles][2]) {
    float top[shape::tiles][2];
    bool any = false, moved = false;
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float x = lowest_score;
#pragma unroll
            for (int m = 0; m < shape::slices; m++) {
                x = fmaxf(x, fmaxf(s[m][n][c], s[m][n][c + 2]));
            }
#pragma unroll
            for (int step = 4; step <= 16; step *= 2) {
                x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
            }
            top[n][c] = x;
            any |= x > lowest_score;
            moved |= x + run[n][c] > state.maximum[n][c];
        }
    }
    if (!__any_sync(0xffffffffu, any)) {
        return false;
    }
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            float scale[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float maximum = fmaxf(state.maximum[n][c], top[n][c] + run[n][c]);
                scale[c] = exp2_fast(state.maximum[n][c] - maximum);
                state.maximum[n][c] = maximum;
                state.sum[n][c] *= scale[c];
            }
#pragma unroll
            for (int b = 0; b < shape::blocks; b++) {
#pragma unroll
                for (int r = 0; r < shape::outputs; r++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        state.out[b][r][n][i] *= scale[i & 1];
                    }
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float total = 0.0f;
#pragma unroll
            for (int m = 0; m < shape::slices; m++) {
                s[m][n][c] = exp2_fast(s[m][n][c] - top[n][c]);
                s[m][n][c + 2] = exp2_fast(s[m][n][c + 2] - top[n][c]);
                total += s[m][n][c] + s[m][n][c + 2];
            }
            weight[n][c] = exp2_fast(top[n][c] + run[n][c] - state.maximum[n][c]);
            state.sum[n][c] = fmaf(total, weight[n][c], state.sum[n][c]);
        }
    }
    return true;
}

// One tile of K: scores by the format's reader. The switch is uniform over the block and taken once a tile.
template <class shape> static __device__ __forceinline__ void
scores_by_format(float (&s)[shape::slices][shape::tiles][4], const stage_params &k, const uint8_t *table,
                 const tile_rows &rows, int count, const uint4 *fragments, const float *scales) {
    constexpr int n = shape::values_per_lane;
    if constexpr (shape::k_format == KV_Q8_0) {
        return tile_scores_q8<shape>(s, rows, fragments, scales);
    } else if constexpr (shape::one_pair) {
        using reader = typename reader_of<shape::k_format, n, shape::look_up>::type;
        return tile_scores<reader, shape>(s, reader(table), rows, count, k.block_bytes, fragments, scales);
    }
#define TURBO_SCORES(KV, reader)                                                                                       \
    case KV: tile_scores<reader, shape>(s, reader(table), rows, count, k.block_bytes, fragments, scales); break
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
        TURBO_SCORES(KV_TURBO4, reader_4bit<n>);
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
        using reader = typename reader_of<shape::v_format, n, shape::look_up>::type;
        return tile_values<reader, shape>(state.out, reader(table), rows, limits, v.block_bytes, p, weight);
    }
#define TURBO_VALUES(KV, reader)                                                                                       \
    case KV: tile_values<reader, shape>(state.out, reader(table), rows, limits, v.block_bytes, p, weight); break
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
            TURBO_VALUES(KV_TURBO2, reader_2bit<n>);
            TURBO_VALUES(KV_TURBO3, reader_3bit<n>);
            TURBO_VALUES(KV_TURBO4, reader_4bit<n>);
        }
    }
#undef TURBO_VALUES
}

// Where the parts of a launch's shared memory begin.
template <class shape> struct shared_layout {
    uint8_t *base;
    // What outlives the walk: pending rows, the first run, the maximum of every column [warp][column], and the barriers
    // [group][2 * ring_slots]. Those would have to be invalidated before their memory is used for anything else: what
    // came there instead was lost when several processes shared the device, once in 50,000 launches.
    static constexpr int maxima_at = 16, barriers_at = maxima_at + shape::warps * shape::columns * (int) sizeof(float),
                         header = barriers_at + shape::warps * 2 * ring_slots * (int) sizeof(uint64_t);
    __device__ pending_rows *pending() const { return reinterpret_cast<pending_rows *>(base); }
    __device__ int *first_run() const { return reinterpret_cast<int *>(base + 8); } // of the block's stretch
    __device__ float *maxima() const { return reinterpret_cast<float *>(base + maxima_at); }
    __device__ uint64_t *barriers(int group) const {
        return reinterpret_cast<uint64_t *>(base + barriers_at) + group * 2 * ring_slots;
    }
    // While walking:
    __device__ uint4 *fragments(int head) const {
        return reinterpret_cast<uint4 *>(base + header) + head * shape::tiles * shape::blocks * shape::fragments;
    }
    __device__ float *scales(const attend_params &p, int head) const {
        return reinterpret_cast<float *>(fragments(p.heads_per_block)) + head * shape::tiles * shape::blocks * 8;
    }
    static __host__ __device__ int scale_row(const attend_params &p) { // of all heads
        return p.heads_per_block * shape::tiles * shape::blocks * 8;
    }
    // What the runs of the block's stretch add to its scores (block by block of a head): a row like the scales for
    // each, behind them, so that whoever has those needs no other address.
    static __host__ __device__ int run_bytes(const attend_params &p) {
        return p.run_room * scale_row(p) * (int) sizeof(float);
    }
    static __host__ __device__ int table_bytes(int format) { return look_up_bytes(format, shape::look_up); }
    // Look-up tables for K and V, one for both if they have the same format.
    __device__ uint8_t *k_table(const attend_params &p) const {
        return reinterpret_cast<uint8_t *>(scales(p, p.heads_per_block) + p.run_room * scale_row(p));
    }
    __device__ uint8_t *v_table(const attend_params &p) const {
        return k_table(p) + (p.v.format == p.k.format ? 0 : table_bytes(p.k.format));
    }
    // Of the rows that are not read from the cache: values [head][row][head_dim], then scores [head][row][column].
    __device__ float *newest_values(const attend_params &p) const {
        return reinterpret_cast<float *>(v_table(p) + table_bytes(p.v.format));
    }
    __device__ float *newest_scores(const attend_params &p) const {
        return newest_values(p) + p.heads_per_block * p.pending.n_rows * shape::head_dim;
    }
    static __host__ __device__ int newest_bytes(const attend_params &p) {
        const int rows = p.takes_newest ? p.pending.n_rows : 0;
        return p.heads_per_block * rows * (shape::head_dim + shape::columns) * (int) sizeof(float);
    }
    __device__ uint8_t *ring(const attend_params &p, int group) const {
        return reinterpret_cast<uint8_t *>(newest_values(p)) + newest_bytes(p) + group * ring_slots * p.slot_bytes;
    }
    // Afterwards: the groups' outputs [group][head][column][parked_row], their sums [group][head][column], the maxima
    // of all groups together [head][column], and (maximum, sum) of all, for a cluster.
    static __host__ __device__ size_t parked_bytes(const attend_params &p, int groups) {
        const size_t columns = (size_t) p.heads_per_block * shape::columns;
        return (groups * columns * (shape::parked_row + 1) + 3 * columns) * sizeof(float);
    }
    __device__ float *parked() const { return reinterpret_cast<float *>(base + header); }
    __device__ float *sums(const attend_params &p) const {
        return parked() + p.groups * p.heads_per_block * shape::columns * shape::parked_row;
    }
    __device__ float *tops(const attend_params &p) const {
        return sums(p) + p.groups * p.heads_per_block * shape::columns;
    }
    __device__ float *merged(const attend_params &p) const { return tops(p) + p.heads_per_block * shape::columns; }
};

// What the runs of the tile that begins at token `first` add to its scores. Nearly always the tile has one: then `run`
// is what all scores of a column lack, and the scores are left alone. Otherwise a slice of 16 tokens has one. `runs`:
// the row of the warp's head for run `first_run`; those of the runs behind it follow.
template <class shape> static __device__ __forceinline__ void add_runs(float (&s)[shape::slices][shape::tiles][4],
                                                                       float (&run)[shape::tiles][2],
                                                                       const attend_params &p, const float *runs,
                                                                       int first_run, int first) {
    const float *mine = runs + 2 * (threadIdx.x & 3);
    const int one = p.runs.run_of(first);
    if (one == p.runs.run_of(first + shape::keys - 16) && p.soft_cap == 0.0f) {
        const float *row = mine + (one - first_run) * shared_layout<shape>::scale_row(p);
#pragma unroll
        for (int i = 0; i < shape::tiles * shape::blocks; i++) {
            const float2 x = *reinterpret_cast<const float2 *>(row + 8 * i);
            run[i / shape::blocks][0] += x.x, run[i / shape::blocks][1] += x.y;
        }
        return;
    }
#pragma unroll
    for (int m = 0; m < shape::slices; m++) {
        const float *row = mine + (p.runs.run_of(first + 16 * m) - first_run) * shared_layout<shape>::scale_row(p);
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
            for (int b = 0; b < shape::blocks; b++) {
                const float2 x = *reinterpret_cast<const float2 *>(row + 8 * (n * shape::blocks + b));
                s[m][n][0] += x.x, s[m][n][1] += x.y, s[m][n][2] += x.x, s[m][n][3] += x.y;
            }
        }
    }
}

// Runs, soft cap and mask for the tile that begins at token `first`; `pairs` as from mask_reader, `scales` those of the
// warp's head; `run` as of add_runs.
template <class shape> static __device__ __forceinline__ void
limit_scores(float (&s)[shape::slices][shape::tiles][4], float (&run)[shape::tiles][2], const attend_params &p,
             const mask_reader &mask, uint32_t pairs, int first, int first_column, const float *scales, int first_run) {
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    if (p.bends) { // asked once: what follows the products is not to be cut into pieces
        if (p.run_room > 0) {
            add_runs<shape>(s, run, p, scales + shared_layout<shape>::scale_row(p), first_run, first);
        }
        if (p.soft_cap != 0.0f) {
#pragma unroll
            for (int i = 0; i < 4 * shape::slices * shape::tiles; i++) {
                float &x = (&s[0][0][0])[i];
                x = p.soft_cap * tanhf(x);
            }
        }
    }
    if (mask.ahead) { // most tiles of a long cache are not masked at all
        if (!__any_sync(0xffffffffu, pairs != 0)) {
            return;
        }
#pragma unroll
        for (int i = 0; i < 2 * shape::slices; i++) {
            const uint32_t pair = __shfl_sync(0xffffffffu, pairs, 4 * i + (g >> 1));
            const float bias = log2_e * __half2float(__ushort_as_half((unsigned short) (g & 1 ? pair >> 16 : pair)));
#pragma unroll
            for (int n = 0; n < shape::tiles; n++) {
                s[i / 2][n][i % 2 * 2] += bias;
                s[i / 2][n][i % 2 * 2 + 1] += bias;
            }
        }
        return;
    }
    if (mask.row != nullptr) {
        const int first_row = p.by_gqa.divide(first_column), rest = p.n_kv - first;
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const int column = min(first_column + 8 * n + 2 * t + c, p.n_columns - 1);
                const __half *at = reinterpret_cast<const __half *>(mask.row + (p.by_gqa.divide(column) - first_row) *
                                                                                   p.mask_stride_row) +
                                   first;
#pragma unroll
                for (int i = 0; i < 2 * shape::slices; i++) {
                    s[i / 2][n][i % 2 * 2 + c] += log2_e * (8 * i + g < rest ? __half2float(at[8 * i + g]) : -INFINITY);
                }
            }
        }
    }
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
            const float *scale = p.q_scale + head * shape::head_dim + b * shape::block_values + (threadIdx.x & 15) * n;
#pragma unroll
            for (int i = 0; i < n; i++) {
                x[i] *= scale[i];
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
                                layout.scales(p, head) + row + 8 * block + column_in_tile(), row);
            }
            prepare_query<shape>(x, p.k.format <= KV_TURBO4_TCQ, p.score_scale, column_in_tile(),
                                 layout.fragments(head) + block * shape::fragments, layout.scales(p, head) + 8 * block,
                                 key_skew(p, head));
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
    const float *scales = layout.scales(p, head);
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
        scores_by_format<shape>(s, p.k, layout.k_table(p), k_rows, end - first, fragments, scales);
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
