// Types of native/shim/turbo_shim.h and turbo_text.h that Python uses. Structs are partial (`...`): the compiler fills
// in the layout, so a field that moved is harmless and one that is gone is a build error. Remarks are in the headers.

#define TURBO_ABI ...
#define TURBO_OUTPUT_NONE ...
#define TURBO_OUTPUT_LAST ...
#define TURBO_OUTPUT_ALL ...
#define TURBO_STEP_NOT_RUN ...
#define TURBO_STEP_NOT_CHOSEN ...

typedef enum turbo_status {
    TURBO_OK ,
    TURBO_E_ARGUMENT ,
    TURBO_E_LOAD ,
    TURBO_E_MEMORY ,
    TURBO_E_UNSUPPORTED ,
    TURBO_E_ABORTED ,
    TURBO_E_NO_SLOT ,
    TURBO_E_DECODE ,
    TURBO_E_STATE ,
    TURBO_E_INTERNAL ,
} turbo_status;
typedef struct turbo_model turbo_model;
typedef struct turbo_lora turbo_lora;
typedef struct turbo_context turbo_context;
typedef struct turbo_sampler turbo_sampler;
typedef bool (*turbo_progress_fn)(float progress, void * user_data);
typedef bool (*turbo_poll_fn)(void * user_data);

typedef struct turbo_device {
    char name[...];
    char description[...];
    int32_t kind;
    int64_t free_bytes;
    int64_t total_bytes;
    ...;
} turbo_device;

typedef struct turbo_model_params {
    int32_t n_gpu_layers;
    int32_t split_mode;
    int32_t main_gpu;
    const float * tensor_split;
    int32_t n_tensor_split;
    const char * load_mode;
    const char * overrides;
    bool use_extra_bufts;
    bool check_tensors;
    bool vocab_only;
    bool no_alloc;
    bool load_mtp;
    turbo_progress_fn progress;
    void * progress_data;
    ...;
} turbo_model_params;

typedef struct turbo_model_facts {
    int32_t n_layer;
    int32_t n_layer_nextn;
    int32_t n_embd;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t n_ctx_train;
    int32_t n_vocab;
    int32_t n_swa;
    int32_t n_expert;
    int32_t rope_type;
    int64_t size_bytes;
    int64_t n_params;
    bool has_encoder;
    bool has_decoder;
    bool is_recurrent;
    bool is_hybrid;
    bool is_mla;
    bool is_diffusion;
    char arch[...];
    char description[...];
    char ftype[...];
    ...;
} turbo_model_facts;

typedef struct turbo_layer_facts {
    bool has_kv;
    bool is_swa;
    bool is_recurrent;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t head_dim_k;
    int32_t head_dim_v;
    int32_t n_rot;
    char device[...];
    ...;
} turbo_layer_facts;

typedef struct turbo_kv_type {
    char name[...];
    char family[...];
    int32_t id;
    int32_t block_values;
    int32_t block_bytes;
    bool is_turbo;
    ...;
} turbo_kv_type;

typedef struct turbo_context_params {
    int32_t n_ctx;
    int32_t n_batch;
    int32_t n_ubatch;
    int32_t n_seq_max;
    int32_t n_outputs_max;
    int32_t n_threads;
    int32_t n_threads_batch;
    int32_t flash_attn;
    int32_t pooling_type;
    int32_t rope_scaling;
    float rope_freq_base;
    float rope_freq_scale;
    float yarn_ext_factor;
    float yarn_attn_factor;
    float yarn_beta_fast;
    float yarn_beta_slow;
    int32_t yarn_orig_ctx;
    const char * type_k;
    const char * type_v;
    const char * type_k_layers;
    bool embeddings;
    bool offload_kqv;
    bool op_offload;
    bool swa_full;
    bool kv_unified;
    bool no_perf;
    turbo_poll_fn poll;
    void * poll_data;
    ...;
} turbo_context_params;

typedef struct turbo_context_facts {
    int32_t n_ctx;
    int32_t n_ctx_seq;
    int32_t n_batch;
    int32_t n_ubatch;
    int32_t n_seq_max;
    int32_t n_threads;
    int32_t n_threads_batch;
    int32_t n_embd_out;
    int32_t pooling_type;
    bool flash_attn;
    bool kv_unified;
    bool can_shift;
    bool has_memory;
    bool is_recurrent;
    ...;
} turbo_context_facts;

typedef struct turbo_kv_layer {
    int32_t layer;
    int32_t part;
    int32_t n_cells;
    int32_t n_stream;
    int32_t k_center_cells;
    int64_t k_values;
    int64_t k_bytes;
    int64_t v_values;
    int64_t v_bytes;
    char type_k[...];
    char type_v[...];
    char buffer_k[...];
    char buffer_v[...];
    ...;
} turbo_kv_layer;

typedef struct turbo_memory_row {
    char buffer[...];
    int64_t model_bytes;
    int64_t context_bytes;
    int64_t compute_bytes;
    ...;
} turbo_memory_row;

typedef struct turbo_perf {
    double prompt_ms;
    double decode_ms;
    int32_t n_prompt;
    int32_t n_decode;
    int32_t n_reused;
    ...;
} turbo_perf;

typedef struct turbo_vocab_facts {
    int32_t n_tokens;
    int32_t type;
    int32_t bos;
    int32_t eos;
    int32_t eot;
    int32_t nl;
    int32_t pad;
    int32_t sep;
    int32_t fim_pre;
    int32_t fim_suf;
    int32_t fim_mid;
    bool add_bos;
    bool add_eos;
    ...;
} turbo_vocab_facts;

typedef struct turbo_sampler_params {
    uint32_t seed;
    int32_t min_keep;
    float temperature;
    float dynatemp_range;
    float dynatemp_exponent;
    int32_t top_k;
    float top_p;
    float min_p;
    float typical_p;
    float top_n_sigma;
    float xtc_probability;
    float xtc_threshold;
    int32_t penalty_last_n;
    float repeat_penalty;
    float frequency_penalty;
    float presence_penalty;
    float dry_multiplier;
    float dry_base;
    int32_t dry_allowed_length;
    int32_t dry_penalty_last_n;
    const char * dry_breakers;
    int32_t dry_breakers_bytes;
    int32_t mirostat;
    float mirostat_tau;
    float mirostat_eta;
    float adaptive_target;
    float adaptive_decay;
    const char * order;
    const char * grammar;
    bool grammar_lazy;
    const char * triggers;
    const int32_t * bias_tokens;
    const float * bias_values;
    int32_t n_bias;
    bool ignore_eos;
    bool no_perf;
    ...;
} turbo_sampler_params;
