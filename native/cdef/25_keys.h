// Functions of native/shim/turbo_keys.h (centred keys).

typedef struct turbo_keys turbo_keys;
typedef struct turbo_keys_layer {
    int32_t layer;
    int32_t n_values;
    int32_t n_moments;
    bool roped;
    double before;
    double after;
    ...;
} turbo_keys_layer;

const char * turbo_keys_refusal(const turbo_model * model);
int32_t turbo_keys_calibrate(turbo_model * model, const int32_t * tokens, int32_t n_tokens, int32_t n_threads,
                             turbo_progress_fn progress, void * user_data, turbo_keys ** out);
int32_t turbo_keys_from_bias(turbo_model * model, turbo_keys ** out);
int32_t turbo_keys_new(turbo_keys ** out);
int32_t turbo_keys_set(turbo_keys * keys, const turbo_keys_layer * layer, const float * values, const float * moments);
int32_t turbo_keys_layers(const turbo_keys * keys, turbo_keys_layer * out, int32_t cap);
int32_t turbo_keys_values(const turbo_keys * keys, int32_t index, float * out, int32_t cap);
int32_t turbo_keys_moments(const turbo_keys * keys, int32_t index, float * out, int32_t cap);
int32_t turbo_context_set_keys(turbo_context * ctx, const turbo_keys * keys);
void turbo_keys_free(turbo_keys * keys);
