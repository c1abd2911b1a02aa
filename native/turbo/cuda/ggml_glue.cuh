// What the files that know ggml share: ggml_write.cu and ggml_glue.cu.

#pragma once

#include "turbo/cuda/attend.h"
#include "turbo/cuda/graph_nodes.h"
#include "turbo/cuda/turbo_cuda.cuh"
#include "turbo/cuda/write.h"
#include "turbo/kv_runs.h"
#include "turbo/types.h"

namespace turbo_cuda {

// Query columns (rows x query heads of a KV head) up to which reading the packed cache beats lifting it.
static constexpr int64_t turbo_max_columns = 64;
static constexpr int64_t turbo_max_rows = 16;

static inline int format_of(const turbo_type_desc *desc) {
    return desc->index / 2; // types.h lists each family with both block sizes, in the order of kv_format
}

// Format of a K or V that our attention reads, -1 for others.
static inline int kv_format_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16: return turbo_cuda::KV_F16;
        case GGML_TYPE_Q8_0: return turbo_cuda::KV_Q8_0;
        case GGML_TYPE_Q4_0: return turbo_cuda::KV_Q4_0;
        default: return turbo_type_is(type) ? format_of(turbo_desc_of(type)) : -1;
    }
}

static inline bool strides_are_multiples(const ggml_tensor *t, size_t unit) {
    return t->nb[1] % unit == 0 && t->nb[2] % unit == 0 && t->nb[3] % unit == 0;
}

// The centres of runs as the kernels take them; none for null.
key_runs runs_of(const ggml_tensor *runs);

// Do they lie on the device, fit the keys `k` of an attention, [head_dim, cells, heads, streams], and cover them? Yes
// for null.
bool runs_fit(int device, const ggml_tensor *runs, const ggml_tensor *k);

// If `x` are the keys of the attention that is lifting its own: lifts them, and puts back the centres that they lack.
// Contiguous: as they lie; otherwise one stretch a head.
bool lift_keys(const void *x, half *y, bool contiguous, cudaStream_t stream);
// Does the attention that runs lift keys of this type that lack centres?
bool lifts_keys(ggml_type type);

// Does this operator of ours take centres of runs from keys or put them back, and does it run on the device?
bool changes_keys(const ggml_tensor *node);
bool key_change_supported(int device, const ggml_tensor *node);

// Does it take them from keys that are to be written?
bool subtracts_runs(const ggml_tensor *node);

// Would `attention` on this device take the one row of `write` from its source?
bool attention_takes_newest(int device, const ggml_tensor *attention, const pending_write &write);

// The blocks of a tensor of a compressed type, as they lie, to f16 or f32 (lift, copies).
read_tensor make_read(const turbo_type_desc *desc, const void *source, void *target, bool half);

// Rows of `src` into `dst`, a cache of a compressed type, as they lie; ids and vectors are the caller's.
write_tensor make_write(const ggml_tensor *src, ggml_tensor *dst);

// The attention that follows a write directly may start beside it (attend.h). Noted when the write is launched, taken
// by that attention when it is: a thread enqueues one graph at a time.
struct noted_write {
    const ggml_tensor *attention;
    turbo_cuda::pending_write write;
};
noted_write &last_write(); // of this thread

// Likewise the scale of its queries, where the product was left to it.
struct noted_scale {
    const ggml_tensor *attention;
    const float *scale;
};
noted_scale &last_scale();

// Writes that come after their attention, beside what follows it (ggml_later.cu).
void put_off(const ggml_tensor *attention, const write_tensor &k, const write_tensor &v);
bool is_put_off(const ggml_tensor *attention);
void write_put_off(ggml_backend_cuda_context &ctx, const ggml_tensor *attention);
void forget_put_off();
// Wait for them before `node`, if it reads or writes one of their caches.
void join_before(ggml_backend_cuda_context &ctx, const ggml_tensor *node);

// The stream that this thread last launched on since its call began (device_state.h).
cudaStream_t &last_stream();

} // namespace turbo_cuda
