// What the attention kernels share: launch parameters and the shapes derived from the template arguments.

#pragma once

#include "formats.cuh"

namespace turbo_cuda {

// Staged tiles a group of warps owns: one in use, two on their way.
static constexpr int ring_slots = 3;
// Warps of a thread block: fewer where a warp needs more registers.
static constexpr int block_warps(int head_dim, int tiles) {
    return head_dim <= 128 && tiles == 1 ? 16 : 8;
}
// Barriers of its groups of warps, one that has come and one that is free for each slot, if a group is a warp.
static constexpr int barrier_bytes(int warps) {
    return warps * 2 * ring_slots * (int) sizeof(uint64_t);
}

// Scores are kept in base 2. A running maximum starts here: finite, so that differences never are NaN.
static constexpr float log2_e = 1.4426950408889634f;
static constexpr float lowest_score = -1e30f;

// Division of small numbers: exact while dividend times divisor is below 2^20.
struct divider {
    uint32_t factor;

    static divider by(int divisor) { return {(1u << 20) / (uint32_t) divisor + 1}; }
    __device__ __forceinline__ int divide(int x) const { return (int) ((uint32_t) x * factor >> 20); }
};

// One of K and V as the kernel sees it.
struct stage_params {
    const char *data;
    int64_t stride_token, stride_head, stride_stream;
    int format;
    int block_bytes; // of one block of a head
    int head_bytes;  // of one head of one token
    int row_bytes;   // of the staged heads of one token
    uint32_t pitch;  // bytes between tokens in shared memory
    uint32_t contiguous;
};

// The rows of key_runs, and finding that of a token of the cache.
struct run_rows {
    const char *rows; // null: there are none
    int64_t stride;
    int last;        // row
    uint32_t factor; // 2^32 / cells of a run, rounded up; exact for 2^24 tokens

    static run_rows of(const key_runs &runs) {
        const uint32_t factor = runs.cells_each > 0 ? (uint32_t) ((1ull << 32) / (uint32_t) runs.cells_each) + 1 : 0;
        return {runs.rows, runs.stride, runs.n_rows - 1, factor};
    }
    __device__ __forceinline__ int run_of(int token) const { return (int) __umulhi((uint32_t) token, factor); }
    __device__ __forceinline__ const char *row(int run) const { return rows + (run < last ? run : last) * stride; }
};

struct attend_params {
    const char *q;
    const float *q_scale;
    int64_t q_stride_row, q_stride_head, q_stride_stream;
    stage_params k, v;
    run_rows runs;
    int run_room; // runs of a head for which a thread block has room (run_products.cuh); 0: keys lack none
    int bends;    // scores are more than products: there are runs, or a soft cap
    const char *mask;
    int64_t mask_stride_row, mask_stride_stream;
    const float *sinks;
    float *out;
    float *partial; // [stream][head_kv][column][split][head_dim], then (maximum, sum) pairs in the same order
    float *partial_ml;
    int n_head_kv, gqa, n_columns, n_rows, n_kv;
    int heads_per_block, groups, splits, column_blocks;
    int split_units, split_rest;  // units of 16 tokens that a split takes; the first split_rest of them take one more
    int late, late_units;         // the last `late` splits begin later and take fewer: so many
    int late_by;                  // host only: units that the others take meanwhile
    int slot_bytes, v_slot_bytes; // the second one of attend_rows.cuh only, where K and V have slots of their own
    divider by_gqa, by_heads;     // heads: those of a thread block
    int warps_per_head, tile_buffers; // of attend_rows.cuh: warps of a team, unpacked tiles it has
    divider by_warps;
    int copy_rows;     // K and V are staged row by row; otherwise tokens whole, with all their heads
    int combine_parts; // thread blocks that merge the splits of a column
    int cluster;       // the splits are a cluster of thread blocks, which merges its results itself
    int inputs_ready;  // queries, mask and scales were complete before the previous kernel began
    float score_scale; // logits to base-2 exponents (to tanh's argument with a soft cap)
    float soft_cap;    // soft cap in base-2 exponents, 0 = none
    pending_write pending;
    int takes_newest;   // tokens being written are taken from their source
    float source_scale; // as score_scale, for keys that are not encoded
};

// Short batches over codes of our own (attend_batch.cuh): warpgroups of a thread block, each of which has a KV head,
// tokens of a tile, and the columns that a warpgroup takes.
static constexpr int batch_warpgroups = 4, batch_keys = 64;
static constexpr int batch_columns_of(int columns) {
    return columns <= 16 ? 16 : 32;
}

// q8_0 keys in products of bytes (attend_q8.cuh): value v of a block lies at place (v + q8_turn) % 32. skew: where the
// head begins within 16 bytes.
static __device__ __forceinline__ int q8_turn(int block, int skew) {
    return skew + 2 * block + 2;
}

// What an instance reads. A kernel is as slow as the format that needs the most registers, so usual pairs of formats
// have instances of their own. Others share one for scalar codes and one for anything. family_each: a loop a format in
// one kernel, where there are registers for that.
static constexpr int family_scalar = -1, family_any = -2, family_each = -3;
static constexpr int family_of(int k_format, int v_format) {
    return k_format | v_format << 4;
}

// Trellis values a look-up in an instance of a pair's own. Four of turbo2_tcq cost a table of 64 KB, three of
// turbo3_tcq one of 128 KB: for a short cache that does not pay, and beside the latter only short tiles have room.
static __host__ __device__ constexpr int own_look_up(int k_format, int v_format, int head_dim, int slices) {
    const bool threes = head_dim == 128 && slices == 2;
    return slices == 1 || k_format != v_format   ? 2
           : k_format == KV_TURBO2_TCQ           ? 4
           : k_format == KV_TURBO3_TCQ && threes ? 3
                                                 : 2;
}

// A head of `blocks` blocks; a warp serves `tiles` times eight columns (query heads x rows) and takes 16*slices tokens
// of the cache at a time: many for throughput, few for latency.
template <int blocks_, int tiles_, int slices_, int values_per_lane_, int family_> struct attend_shape {
    static constexpr int family = family_;
    static constexpr bool one_pair = family >= 0;
    static constexpr int k_format = one_pair ? family & 15 : -1, v_format = one_pair ? family >> 4 : -1;
    // Keys that are multiplied as f16 have queries of two halves; q8_0 with an instance of its own stays int8.
    static constexpr bool halves_keys = family == family_any || (k_format >= KV_F16 && k_format != KV_Q8_0);
    static constexpr bool reads_trellis = family == family_any || is_trellis(k_format) || is_trellis(v_format);
    // Rows of a float for each column that are kept of the queries: their scales and, where keys may be rounded so that
    // a byte other than 0 stands for 0 (reader_4bit_rounded), the sums of their bytes.
    static constexpr int query_rows = !one_pair || k_format == KV_TURBO4 ? 2 : 1;
    // Are values codes whose bytes are unsigned, another one than 0 standing for 0 (reader_scalar)?
    static constexpr bool counts_zeros = !one_pair || v_format <= KV_TURBO4;
    static constexpr int blocks = blocks_;
    static constexpr int tiles = tiles_;
    static constexpr int slices = slices_;
    static constexpr int keys = 16 * slices;
    static constexpr int values_per_lane = values_per_lane_;
    // Short caches only, which are cut into few tokens at a time (attend_make_plan): the others do without the code.
    static constexpr bool in_clusters = slices_ == (tiles_ > 1 && blocks_ == 1 ? 2 : 1);
    static constexpr int parts = values_per_lane / 8;
    static constexpr int block_values = values_per_lane * 4;
    static constexpr int head_dim = blocks * block_values;
    static constexpr int look_up = own_look_up(k_format, v_format, head_dim, slices);
    static constexpr int columns = 8 * tiles;
    static constexpr int warps = block_warps(head_dim, tiles);
    // Accumulators of a block and tile of columns, four values each: what tile_values and the like put out.
    static constexpr int outputs = v_format == KV_Q8_0 ? 9 : values_per_lane / 4;
    // Parked outputs are padded so that neither writing fragments nor reading rows meets bank conflicts.
    static constexpr int parked_row = blocks * (block_values + block_values / 8) - 4;
    static __device__ __forceinline__ int parked_at(int value) { return value + value / 32 * 4; }
    // uint4 of a prepared query block, for each lane: two parts of bytes share one; q8_0 has one of two bytes a value
    // for each of its blocks, halves have two a part
    static constexpr int fragments = 32 * (halves_keys ? 2 * parts : k_format == KV_Q8_0 ? parts : parts / 2);

    // The inverse, for the first byte of a register.
    static __device__ __forceinline__ int quarter_of(int value) {
        return values_per_lane == 32 ? value / 32 : value / 32 * 2 + (value / 4 & 1);
    }
    static __device__ __forceinline__ int register_of(int value) {
        return values_per_lane == 32 ? value / 4 % 8 : value % 32 / 8;
    }

    // Position in its block of byte `byte` of register `r` of quarter `t`.
    static __device__ __forceinline__ int position(int t, int r, int byte) {
        return values_per_lane == 32 ? 32 * t + 4 * r + byte : 32 * (t >> 1) + 8 * r + 4 * (t & 1) + byte;
    }
};

} // namespace turbo_cuda
