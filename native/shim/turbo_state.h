// What decides whether the bytes of one cache mean the same in another. Same rules as turbo_shim.h.
#ifndef TURBO_STATE_H
#define TURBO_STATE_H

#include "turbo_shim.h"

#ifdef __cplusplus
extern "C" {
#endif

// Read back from a context, after everything that models and options decide. n_stream is 0 without a KV cache.
typedef struct turbo_kv_identity {
    float rope_freq_base;
    float rope_freq_scale;
    float yarn_ext_factor;
    float yarn_attn_factor;
    float yarn_beta_fast;
    float yarn_beta_slow;
    int32_t yarn_orig_ctx;
    int32_t n_stream;    // separate caches: n_seq_max, or 1 with kv_unified
    bool rotated_k;      // keys (values) are rotated in the graph before they are stored (q4_0, ...)
    bool rotated_v;
    bool transposed_v;   // values lie transposed, as without flash attention
} turbo_kv_identity;

TURBO_API int32_t turbo_kv_get_identity(const turbo_context * ctx, turbo_kv_identity * out);

#ifdef __cplusplus
}
#endif

#endif  // TURBO_STATE_H
