// Centred keys: the mean key of each layer, how it is measured, and its use in a context. Same rules as turbo_shim.h.
//
// Softmax does not change when one vector is taken from every key a query sees. Keys whose mean is large against their
// spread (Qwen2.5: up to 360 against 1.5) lose their content in a few bits; less their mean they do not.
#ifndef TURBO_KEYS_H
#define TURBO_KEYS_H

#include "turbo_shim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct turbo_keys turbo_keys;  // mean keys before RoPE, by layer; belongs to the caller

typedef struct turbo_keys_layer {
    int32_t layer;         // model layer
    int32_t n_values;      // n_head_kv * head_dim
    bool    roped;         // RoPE applies to this layer's keys
    double  before;        // disturbance of the layer's attention by 3-bit trellis keys, not centred, nats
    double  after;         // the same, centred for the calibration's own positions
} turbo_keys_layer;

// "" if this model's keys can be centred, else the reason. Valid until the thread's next call.
TURBO_API const char * turbo_keys_refusal(const turbo_model * model);

// Runs `n_tokens` tokens through the model (one sequence, float32-exact K statistics, f16 cache) and gathers the mean keys.
// progress may be NULL; returning false stops with TURBO_E_ABORTED. n_threads 0 = all.
TURBO_API int32_t turbo_keys_calibrate(turbo_model * model, const int32_t * tokens, int32_t n_tokens, int32_t n_threads,
                                       turbo_progress_fn progress, void * user_data, turbo_keys ** out);

// The model's own K bias as mean keys: no run needed, but blind to everything else. TURBO_E_UNSUPPORTED without biases.
TURBO_API int32_t turbo_keys_from_bias(turbo_model * model, turbo_keys ** out);

// Empty mean keys to fill from a file with turbo_keys_set.
TURBO_API int32_t turbo_keys_new(turbo_keys ** out);
TURBO_API int32_t turbo_keys_set(turbo_keys * keys, const turbo_keys_layer * layer, const float * values);

// Layers with mean keys: fills at most cap, returns how many there are. Values of one of them by index.
TURBO_API int32_t turbo_keys_layers(const turbo_keys * keys, turbo_keys_layer * out, int32_t cap);
TURBO_API int32_t turbo_keys_values(const turbo_keys * keys, int32_t index, float * out, int32_t cap);

// Centre a new context's keys, before anything is decoded in it. Float keys gain nothing by it and cannot be shifted then;
// a caller leaves them alone.
TURBO_API int32_t turbo_context_set_keys(turbo_context * ctx, const turbo_keys * keys);

TURBO_API void turbo_keys_free(turbo_keys * keys);

#ifdef __cplusplus
}
#endif

#endif  // TURBO_KEYS_H
