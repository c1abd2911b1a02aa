// Attention over a compressed KV cache: what a caller passes (no CUDA types beyond the stream, no ggml).

#pragma once

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

namespace turbo_cuda {

// What a row of K or V is stored as. The turbo types are blocks of 128 values; `turbo_block` 64 selects the siblings.
enum kv_format : int {
    KV_TURBO2,
    KV_TURBO3,
    KV_TURBO4,
    KV_TURBO2_TCQ,
    KV_TURBO3_TCQ,
    KV_TURBO4_TCQ,
    KV_F16,
    KV_Q8_0,
    KV_Q4_0
};

// One of K and V. Strides in bytes: between tokens, heads and streams.
struct kv_tensor {
    const char *data;
    int format;
    int64_t stride_token, stride_head, stride_stream;
};

// The centres of runs of cells that stored keys lack (turbo/kv_runs.h): rows of f16, all heads side by side, each for
// `cells_each` cells of a stream.
struct key_runs {
    const char *rows;  // null: keys lack none
    int64_t stride;    // bytes between rows
    int n_rows;
    int cells_each;    // a multiple of 64; 0: the first row is for all cells
    int stream_cells;  // of the cache as a whole, whose cells count on from stream to stream
};

// Rows that the launch just before the attention is still encoding, n_rows of them in K and in V; 0: none. That launch
// must have waited for its own predecessors and have read its input before it lets the attention start. The newest
// tokens are then taken from that input and their rows in the cache are not read, so that the encoding, a long one for
// trellis codes, is off the critical path. Where that is not possible the kernel waits for the launch first.
struct pending_write {
    const char *source[2]; // f32 rows of K and V, heads side by side
    int64_t source_stride[2];
    const float *factor, *centre; // K's rows count times `factor`, less `centre`; or null. Nothing is taken off by runs
    const char *ids[2];           // of K and V: row in the cache
    int64_t ids_stride[2];
    int ids_64[2];       // i64, else i32
    int64_t first_token; // row of the cache at which K and V as passed begin
    int n_rows;          // at most 16
    int blocks;          // thread blocks of that launch, which occupy multiprocessors meanwhile
    bool later;          // it comes after the attention instead; only for one row, and if attend_takes_newest
};

struct attend_args {
    const char *q;        // f32, head_dim values contiguous
    const float *q_scale; // queries count times this: [n_head][head_dim], alike within a group; or null
    int64_t q_stride_row, q_stride_head, q_stride_stream;
    kv_tensor k, v;
    key_runs runs;    // that K lacks: each query's product with them is added to its scores
    const char *mask; // f16 [n_kv] a row, or null
    int64_t mask_stride_row, mask_stride_stream;
    const float *sinks; // one logit a query head, or null
    float *out;         // f32 [stream][row][head][head_dim], contiguous
    float *scratch;     // attend_scratch_bytes()
    int head_dim;
    int block; // values a block: 128, or 64 for head dims that are no multiple of 128
    int n_head, n_head_kv, n_rows, n_streams, n_kv;
    float scale, soft_cap; // soft_cap 0 = none
    int multiprocessors;   // of the device
    size_t shared_limit;   // bytes of shared memory a thread block can have there (the opt-in maximum)
    pending_write pending;
    bool clusters;     // the device and the code for it have clusters of thread blocks (sm_90)
    bool inputs_ready; // q, q_scale, mask and sinks were complete before the launch just before this one began
    bool warpgroups;   // the device and the code for it have warpgroup products (attend_wide_compiled, sm_90)
};

// How a call is cut over the chip.
struct attend_plan {
    int heads_per_block; // KV heads a thread block serves
    int splits;          // blocks along the cache
    int slices;          // 16-token slices a warp takes at a time
    int tiles;           // tiles of columns a warp takes at a time: of eight, or of 16 if it shares a head
    int warps_per_head;  // that share the unpacking, for many columns (attend_rows.cuh); otherwise 0
    int cluster;         // 0, or for short caches: thread blocks of a cluster, as many as splits
    bool wide;           // many columns with warpgroup products (attend_wide.cuh)
    bool batch;          // those of attend_batch.cuh; wide as well
};

// Who unpacks: every warp for its own columns, a team of warps for all columns of a KV head (attend_rows.cuh; more than 16
// of them), a warpgroup for one that multiplies (attend_wide.cuh; more than eight columns, where there are warpgroup
// products and the cache is long enough to be shared out), or, of codes of our own, the warpgroup that multiplies
// (attend_batch.cuh; likewise). The last three are there for heads of 128.
enum class attend_way { best, own, team, wide, batch };

// heads_per_block and slices: 0 lets the plan choose, as attend_way::best does.
attend_plan attend_make_plan(const attend_args &args, int heads_per_block = 0, int slices = 0,
                             attend_way way = attend_way::best);
size_t attend_scratch_bytes(const attend_args &args, const attend_plan &plan);

// Is there code for warpgroup products? Devices of compute capability 9.0 run it.
bool attend_wide_compiled();

// Would the attention take the rows in args.pending from their source?
bool attend_takes_newest(const attend_args &args, const attend_plan &plan);

// Enqueue the attention. Returns the first error of the launches. Never allocates or synchronises.
cudaError_t attend(const attend_args &args, const attend_plan &plan, cudaStream_t stream);

} // namespace turbo_cuda
