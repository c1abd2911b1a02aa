// What one GGML_OP_FLASH_ATTN_EXT asks for, read from its tensors once, and how its work is cut up.

#ifndef TURBO_CPU_FATTN_OP_H
#define TURBO_CPU_FATTN_OP_H

#include <stddef.h>
#include <stdint.h>

#include "ggml.h"

#include "turbo/types.h"

namespace turbo_fattn {

// K or V: [width, keys, heads, streams] with strides in bytes.
struct side {
    ggml_type type;
    const turbo_type_desc *desc; // NULL for f16, q8_0 and q4_0
    const char *data;
    int width;        // head dim
    int block;        // values that share a scale in a tile: the turbo block, else the whole head
    int blocks;       // width / block
    size_t row_bytes; // of one key of one head
    size_t key_stride, head_stride, stream_stride;
    int heads_each;   // query heads that share a head of this side
    int streams_each; // query streams that share a stream of this side
};

// The centres of runs of cells that stored keys lack (turbo/kv_runs.h).
struct run_centers {
    side rows;          // read as keys: one "key" a run, its heads side by side
    int64_t tiles_each; // tiles of a run; 0: keys lack nothing
};

struct op {
    side k, v;
    run_centers runs;
    const ggml_tensor *q, *mask, *sinks;
    ggml_tensor *dst;
    int64_t keys, queries, heads, streams; // of the cache; rows, heads and streams of Q
    int group;                             // consecutive query heads with the same K head and the same V head
    float scale, cap;                      // cap: logit soft-cap, 0 for none; scale is already divided by it
    float max_bias, slope_low, slope_high; // ALiBi
    int64_t heads_low;                     // heads below this take slope_low
};

// Read dst into *out; false if the op is not ours (types, shapes or layouts). Looks at no tensor data.
bool read_op(const ggml_tensor *dst, op *out);

// ALiBi slope of a query head; 1 without ALiBi.
float head_slope(const op &o, int64_t head);

// Work is cut into units, (stream, head group, run of query rows), and each unit into chunks of keys. A unit's rows are
// numbered r = query * group + head within the group. One unit and chunk is an item, computed by one thread.
struct plan {
    int64_t unit_queries; // query rows of a unit (the last run may have fewer)
    int64_t runs;         // runs a stream and head group
    int64_t units;
    int64_t tiles;     // tiles of keys
    int64_t chunks;    // chunks a unit; 1 = no partial results
    int64_t unit_rows; // rows a unit at most: unit_queries * group
    bool dealt;        // items differ in cost: deal them out as threads get free, the last units first. Otherwise each
                       // thread has a fixed run of items, chunk by chunk, all units of a chunk together

    size_t thread_bytes;  // scratch of a thread
    size_t partial_bytes; // all partial results
};

// split_keys: false forbids partial results, so that the plan needs least memory.
plan make_plan(const op &o, int threads, bool split_keys);

// Bytes of work buffer for a plan, with room to align it.
size_t plan_bytes(const plan &p, int threads);

struct tile_range {
    int64_t first, end;
};

// A thread's scratch, cut out of its thread_bytes. Every part begins on a cache line.
struct scratch {
    char *queries;          // [unit_rows][K width], as the K engine stores them
    float *query_scales;    // [unit_rows][K blocks]
    float *out;             // [unit_rows][V width]
    float *top, *sum;       // [unit_rows]
    float *sums;            // [unit_rows][sum_lanes]
    const uint16_t **masks; // [unit_rows]: the mask's values for a row, from key 0 on
    float *slopes;          // [unit_rows]: what the mask is multiplied by
    char *k_tile, *v_tile;
    float *k_scales, *v_scales; // [blocks][tile_keys]
    int8_t *codes;              // [tile_keys][largest block]
    float *rows;                // [pack_keys_each][K width] float keys; also one query
    float *run_queries;         // [unit_rows][K width]: queries as floats, not rotated; only where keys lack centres
    float *run_scores;          // [unit_rows][tile_keys]: what the runs at hand add to a row's scores; likewise
    tile_range *seen;           // [streams]: the tiles that some query of the stream sees
    uint8_t *sight;             // [panels of a unit]: how much of the tile a panel sees
    size_t bytes;               // all of it
};

// With base NULL only .bytes means something.
scratch cut_scratch(const op &o, int64_t unit_rows, char *base);

} // namespace turbo_fattn

#endif // TURBO_CPU_FATTN_OP_H
