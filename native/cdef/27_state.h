// Functions of native/shim/turbo_state.h (identity of a cache).

typedef struct turbo_kv_identity {
    float rope_freq_base;
    float rope_freq_scale;
    float yarn_ext_factor;
    float yarn_attn_factor;
    float yarn_beta_fast;
    float yarn_beta_slow;
    int32_t yarn_orig_ctx;
    int32_t n_stream;
    bool rotated_k;
    bool rotated_v;
    bool transposed_v;
    ...;
} turbo_kv_identity;

int32_t turbo_kv_get_identity(const turbo_context * ctx, turbo_kv_identity * out);
