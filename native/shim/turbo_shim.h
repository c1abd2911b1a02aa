// The C surface of libllama_turbo: everything that the Python package calls, and nothing else. Vocabulary, sampling and
// chat are in turbo_text.h.
//
// Rules that hold for every function:
//   - No C++ exception leaves the library. A call that can fail returns a turbo_status; the reason, with the
//     numbers it depends on, is in turbo_last_error() of the calling thread until that thread's next failing call.
//   - Arguments that would make the native code abort (batch too long, token outside the vocabulary, ...) are
//     refused here, before the call.
//   - A turbo_context is used by one thread at a time. Only turbo_abort_set() may come from another thread.
//   - A model must outlive its contexts and samplers. Freeing NULL is allowed, freeing twice is not.
//   - Strings are UTF-8. Strings returned through `char **` belong to the caller: turbo_string_free().
//   - Buffers are filled up to their size; the return value says how much was needed (see each function).
#ifndef TURBO_SHIM_H
#define TURBO_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define TURBO_API __attribute__((visibility("default")))
#else
#define TURBO_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// Raised with every change of a struct or signature below; turbo_abi() returns the library's own value.
#define TURBO_ABI 1

#define TURBO_NAME_MAX 64  // bytes of the fixed-size names below, terminator included

// ---------------------------------------------------------------------------------------------------------------
// Status
// ---------------------------------------------------------------------------------------------------------------

typedef enum turbo_status {
    TURBO_OK = 0,
    TURBO_E_ARGUMENT = -1,     // an argument is outside its range; nothing was done
    TURBO_E_LOAD = -2,         // the file is missing, damaged, or of an unknown architecture
    TURBO_E_MEMORY = -3,       // an allocation failed, in RAM or on a device
    TURBO_E_UNSUPPORTED = -4,  // this model, cache or build cannot do it
    TURBO_E_ABORTED = -5,      // stopped by the abort flag, the poll function or the progress callback
    TURBO_E_NO_SLOT = -6,      // the KV cache has no room for the batch; the cache is unchanged
    TURBO_E_DECODE = -7,       // computation failed; tokens already processed stay in the cache
    TURBO_E_STATE = -8,        // saved state is damaged or belongs to another configuration
    TURBO_E_INTERNAL = -9,     // an exception of the native code
} turbo_status;

TURBO_API int32_t turbo_abi(void);
TURBO_API const char * turbo_last_error(void);  // never NULL; valid until the thread's next failing call
TURBO_API void turbo_string_free(char * text);

// ---------------------------------------------------------------------------------------------------------------
// Library: start, logs, build facts, devices
// ---------------------------------------------------------------------------------------------------------------

// Registers backends and devices. Safe to call repeatedly and from several threads.
TURBO_API int32_t turbo_backend_init(void);

// JSON object: version, upstream_commit, digest (pin + patches + our sources), backend, cuda {archs, graphs},
// cpu [features compiled in], kv_types, kv_format, codebook_hash, compiler, abi. The pointer stays valid.
TURBO_API const char * turbo_build_info(void);

// CPU features that this build uses and this machine lacks, comma separated. Returns their number.
// Calls no vector code, so it is safe on any CPU of the architecture.
TURBO_API int32_t turbo_cpu_missing(char * buf, int32_t size);

// Native log lines go to a bounded ring, never to stderr, and are read from there: no callback into Python runs
// on a worker thread or at exit. Levels: 1 debug, 2 info, 3 warning, 4 error. Lines below `level` are not kept.
TURBO_API void turbo_log_level(int32_t level);
// Moves the oldest line into buf (cut to size - 1 bytes). Returns its level, or 0 if the ring is empty.
TURBO_API int32_t turbo_log_pop(char * buf, int32_t size);
TURBO_API int64_t turbo_log_dropped(void);  // lines overwritten before they were read, since the start

typedef struct turbo_device {
    char name[TURBO_NAME_MAX];  // "CPU", "CUDA0"
    char description[128];      // marketing name of the hardware
    int32_t kind;               // 0 CPU, 1 GPU, 2 integrated GPU, 3 accelerator
    int64_t free_bytes;
    int64_t total_bytes;
} turbo_device;

TURBO_API int32_t turbo_device_count(void);
TURBO_API int32_t turbo_device_get(int32_t index, turbo_device * out);

// ---------------------------------------------------------------------------------------------------------------
// Model
// ---------------------------------------------------------------------------------------------------------------

typedef struct turbo_model turbo_model;

// progress is in 0..1 and does not fall; returning false cancels the load (TURBO_E_ABORTED).
typedef bool (*turbo_progress_fn)(float progress, void * user_data);

typedef struct turbo_model_params {
    int32_t n_gpu_layers;        // layers placed on the GPU; negative = all
    int32_t split_mode;          // 0 one GPU, 1 by layer, 2 by row
    int32_t main_gpu;            // device index used with split_mode 0
    const float * tensor_split;  // share of each device, turbo_device_count() values at most, or NULL
    int32_t n_tensor_split;
    const char * load_mode;      // "auto", "none", "mmap", "mlock", "mmap+mlock" or "dio"
    const char * overrides;      // "pattern=buffer,pattern=buffer" tensor placement, or NULL
    bool use_extra_bufts;        // allow repacked weight layouts
    bool check_tensors;          // validate every tensor while loading
    bool vocab_only;             // tokenizer and metadata only
    bool no_alloc;               // plan the memory without allocating or reading weights
    bool load_mtp;               // load the multi-token-prediction layers
    turbo_progress_fn progress;  // or NULL
    void * progress_data;
} turbo_model_params;

typedef struct turbo_model_facts {
    int32_t n_layer;             // layers of the trunk, prediction heads excluded
    int32_t n_layer_nextn;       // multi-token-prediction layers
    int32_t n_embd;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t n_ctx_train;
    int32_t n_vocab;
    int32_t n_swa;               // sliding window in tokens, 0 if none
    int32_t n_expert;
    int32_t rope_type;           // -1 none, 0 norm, 2 neox, 8 mrope, ...
    int64_t size_bytes;          // of all tensors
    int64_t n_params;
    bool has_encoder;
    bool has_decoder;
    bool is_recurrent;
    bool is_hybrid;
    bool is_mla;                 // latent attention: V is a view of K
    bool is_diffusion;
    char arch[TURBO_NAME_MAX];
    char description[128];       // "qwen2 1.5B Q4_K - Medium"
    char ftype[TURBO_NAME_MAX];
} turbo_model_facts;

typedef struct turbo_layer_facts {
    bool has_kv;                 // the layer owns KV cache tensors
    bool is_swa;                 // its cache is the sliding-window one
    bool is_recurrent;
    int32_t n_head;
    int32_t n_head_kv;
    int32_t head_dim_k;
    int32_t head_dim_v;          // 0 when V is a view of K
    int32_t n_rot;               // rotated dimensions of K
    char device[TURBO_NAME_MAX];
} turbo_layer_facts;

TURBO_API void turbo_model_params_init(turbo_model_params * params);  // llama.cpp's defaults
TURBO_API int32_t turbo_model_load(const char * path, const turbo_model_params * params, turbo_model ** out);
TURBO_API void turbo_model_free(turbo_model * model);
TURBO_API int32_t turbo_model_get_facts(const turbo_model * model, turbo_model_facts * out);
TURBO_API int32_t turbo_model_get_layer(const turbo_model * model, int32_t layer, turbo_layer_facts * out);
// Kind of buffer that holds a weight ("CPU", "CPU_REPACK"), or would hold it in a model loaded with no_alloc; "" for a
// name that is none. Returns the bytes it needs.
TURBO_API int32_t turbo_model_tensor_buffer(const turbo_model * model, const char * name, char * buf, int32_t size);

// GGUF metadata: scalars as text, arrays are left out. Returns the bytes the value needs, or a negative status.
TURBO_API int32_t turbo_model_meta_count(const turbo_model * model);
TURBO_API int32_t turbo_model_meta_key(const turbo_model * model, int32_t index, char * buf, int32_t size);
TURBO_API int32_t turbo_model_meta_value(const turbo_model * model, int32_t index, char * buf, int32_t size);

// LoRA adapters: loaded once per model, which frees them; set per context with one scale each (n = 0 removes all).
typedef struct turbo_lora turbo_lora;
typedef struct turbo_context turbo_context;
TURBO_API int32_t turbo_lora_load(turbo_model * model, const char * path, turbo_lora ** out);
TURBO_API int32_t turbo_lora_set(turbo_context * ctx, turbo_lora ** loras, const float * scales, int32_t n);

// ---------------------------------------------------------------------------------------------------------------
// KV cache types
// ---------------------------------------------------------------------------------------------------------------

typedef struct turbo_kv_type {
    char name[TURBO_NAME_MAX];    // "turbo3", "turbo3_64", "q8_0"
    char family[TURBO_NAME_MAX];  // the name users choose: "turbo3" for both block sizes
    int32_t id;                   // of this build only: never store it
    int32_t block_values;         // values in a block
    int32_t block_bytes;
    bool is_turbo;                // one of this project's types
} turbo_kv_type;

TURBO_API int32_t turbo_kv_type_count(void);
TURBO_API int32_t turbo_kv_type_get(int32_t index, turbo_kv_type * out);

// The types that a context of this model would store for the public names k and v: the block size that fits all
// head dims, or TURBO_E_UNSUPPORTED with the reason, or TURBO_E_ARGUMENT for an unknown name.
TURBO_API int32_t turbo_kv_select(const turbo_model * model, const char * k, const char * v, turbo_kv_type * out_k,
                                  turbo_kv_type * out_v);

// Encodes n values (a multiple of the block) to dst, and back. bytes must be n / block_values * block_bytes.
TURBO_API int32_t turbo_kv_encode(const char * name, const float * src, int64_t n, void * dst, int64_t bytes);
TURBO_API int32_t turbo_kv_decode(const char * name, const void * src, int64_t bytes, float * dst, int64_t n);

// ---------------------------------------------------------------------------------------------------------------
// Context
// ---------------------------------------------------------------------------------------------------------------

// Called about every 50 ms from the thread that runs turbo_context_decode (CPU work only); true aborts.
typedef bool (*turbo_poll_fn)(void * user_data);

typedef struct turbo_context_params {
    int32_t n_ctx;            // tokens for all sequences together; 0 = what the model was trained on
    int32_t n_batch;          // longest batch one decode call accepts
    int32_t n_ubatch;         // longest batch computed at once
    int32_t n_seq_max;        // sequences
    int32_t n_outputs_max;    // most logit rows one batch may ask for; 0 = n_batch
    int32_t n_threads;        // for one token; 0 = choose
    int32_t n_threads_batch;  // for several tokens; 0 = as n_threads
    int32_t flash_attn;       // -1 auto, 0 off, 1 on
    int32_t pooling_type;     // -1 from model, 0 none, 1 mean, 2 cls, 3 last, 4 rank
    int32_t rope_scaling;     // -1 from model, 0 none, 1 linear, 2 yarn, 3 longrope
    float rope_freq_base;     // 0 = from model
    float rope_freq_scale;    // 0 = from model
    float yarn_ext_factor;    // negative = from model
    float yarn_attn_factor;
    float yarn_beta_fast;
    float yarn_beta_slow;
    int32_t yarn_orig_ctx;    // 0 = from model
    const char * type_k;      // KV type names; see turbo_kv_select
    const char * type_v;
    const char * type_k_layers;  // layers with another K type, "layer=type,layer=type", or NULL
    bool embeddings;          // also output embeddings
    bool offload_kqv;         // KV cache and attention on the GPU
    bool op_offload;
    bool swa_full;            // sliding-window layers keep the whole context
    bool kv_unified;          // one cache for all sequences instead of n_ctx / n_seq_max each
    bool no_perf;             // do not measure timings
    turbo_poll_fn poll;       // or NULL
    void * poll_data;
} turbo_context_params;

typedef struct turbo_context_facts {
    int32_t n_ctx;            // as made; the library rounds up
    int32_t n_ctx_seq;        // longest single sequence
    int32_t n_batch;
    int32_t n_ubatch;
    int32_t n_seq_max;
    int32_t n_threads;
    int32_t n_threads_batch;
    int32_t n_embd_out;       // length of one embedding; with pooling_type 4, number of scores
    int32_t pooling_type;
    bool flash_attn;
    bool kv_unified;
    bool can_shift;           // positions of cached keys can be moved
    bool has_memory;          // false for encoder-only models
    bool is_recurrent;        // some layers keep a state that cannot be rolled back
} turbo_context_facts;

// One layer of the KV cache, read back from its tensors.
typedef struct turbo_kv_layer {
    int32_t layer;
    int32_t part;                   // 0 full attention, 1 sliding window, 2 other
    int32_t n_cells;                // tokens it can hold per stream
    int32_t n_stream;
    int32_t k_center_cells;         // cells of a stream whose keys share a centre: a run, or all of them; 0: stored as they are
    int64_t k_values;               // elements of the K tensor
    int64_t k_bytes;
    int64_t v_values;               // 0 when V is a view of K
    int64_t v_bytes;
    char type_k[TURBO_NAME_MAX];    // internal name, block suffix included
    char type_v[TURBO_NAME_MAX];
    char buffer_k[TURBO_NAME_MAX];  // buffer that holds it: "CPU", "CUDA0"
    char buffer_v[TURBO_NAME_MAX];
} turbo_kv_layer;

TURBO_API void turbo_context_params_init(turbo_context_params * params);
TURBO_API int32_t turbo_context_new(turbo_model * model, const turbo_context_params * params, turbo_context ** out);
TURBO_API void turbo_context_free(turbo_context * ctx);
TURBO_API int32_t turbo_context_get_facts(const turbo_context * ctx, turbo_context_facts * out);
TURBO_API int32_t turbo_context_set_threads(turbo_context * ctx, int32_t n_threads, int32_t n_threads_batch);

// Writes at most `cap` layers; returns how many the cache has, or a negative status.
TURBO_API int32_t turbo_kv_layers(const turbo_context * ctx, turbo_kv_layer * out, int32_t cap);

typedef struct turbo_memory_row {
    char buffer[TURBO_NAME_MAX];
    int64_t model_bytes;
    int64_t context_bytes;
    int64_t compute_bytes;
} turbo_memory_row;

// Bytes by buffer type. Writes at most `cap` rows; returns how many there are, or a negative status.
// Make a sequence hold n random tokens at positions 0 to n-1 without computing them: the time of reading a long cache can
// be measured at once. What a model says after it is noise. One-sequence contexts only.
TURBO_API int32_t turbo_kv_fill(turbo_context * ctx, int32_t seq, int32_t n, uint32_t seed);

TURBO_API int32_t turbo_memory_breakdown(const turbo_context * ctx, turbo_memory_row * out, int32_t cap);

// ---------------------------------------------------------------------------------------------------------------
// Decode
// ---------------------------------------------------------------------------------------------------------------

// Outputs of a batch: none, the last token, every token.
#define TURBO_OUTPUT_NONE 0
#define TURBO_OUTPUT_LAST 1
#define TURBO_OUTPUT_ALL 2

// n tokens of one sequence at positions pos, pos + 1, ...
TURBO_API int32_t turbo_context_decode(turbo_context * ctx, const int32_t * tokens, int32_t n, int32_t pos,
                                       int32_t seq, int32_t outputs);
// n tokens with their own position, sequence and output flag.
TURBO_API int32_t turbo_context_decode_batch(turbo_context * ctx, const int32_t * tokens, const int32_t * pos,
                                             const int32_t * seq, const int8_t * outputs, int32_t n);

// Logits of the last decode: rows in batch order, [*rows][n_vocab], valid until the next call on the context.
// NULL if the last decode had no output.
TURBO_API float * turbo_logits(turbo_context * ctx, int32_t * rows);
// Embedding of one sequence (pooled contexts) or of one batch position (seq < 0), n_embd_out floats, or NULL.
TURBO_API float * turbo_embedding(turbo_context * ctx, int32_t seq, int32_t index);

// A nonzero flag stops the running decode (CPU: within one operation; GPU: before the next one) and refuses new ones.
TURBO_API void turbo_abort_set(turbo_context * ctx, int32_t value);
TURBO_API int32_t turbo_abort_get(const turbo_context * ctx);

typedef struct turbo_perf {
    double prompt_ms;     // time in batches of several tokens
    double decode_ms;     // time in single tokens
    int32_t n_prompt;
    int32_t n_decode;
    int32_t n_reused;     // compute graphs used again
} turbo_perf;

TURBO_API int32_t turbo_perf_get(const turbo_context * ctx, turbo_perf * out);
TURBO_API void turbo_perf_reset(turbo_context * ctx);

// ---------------------------------------------------------------------------------------------------------------
// Cache content. Positions are half open, [p0, p1); p1 < 0 = to the end.
// ---------------------------------------------------------------------------------------------------------------

TURBO_API int32_t turbo_memory_clear(turbo_context * ctx);
TURBO_API int32_t turbo_seq_rm(turbo_context * ctx, int32_t seq, int32_t p0, int32_t p1);
TURBO_API int32_t turbo_seq_cp(turbo_context * ctx, int32_t src, int32_t dst, int32_t p0, int32_t p1);
TURBO_API int32_t turbo_seq_keep(turbo_context * ctx, int32_t seq);
TURBO_API int32_t turbo_seq_add(turbo_context * ctx, int32_t seq, int32_t p0, int32_t p1, int32_t delta);
// First and last position held for a sequence, -1 if empty. Between them everything is present.
TURBO_API int32_t turbo_seq_range(turbo_context * ctx, int32_t seq, int32_t * first, int32_t * last);

// State of one sequence, or of the whole context with seq = -1.
TURBO_API int64_t turbo_state_size(turbo_context * ctx, int32_t seq);
TURBO_API int64_t turbo_state_get(turbo_context * ctx, int32_t seq, void * dst, int64_t bytes);
TURBO_API int64_t turbo_state_set(turbo_context * ctx, int32_t seq, const void * src, int64_t bytes);

#ifdef __cplusplus
}
#endif

#endif  // TURBO_SHIM_H
