// Functions of native/shim/turbo_shim.h and turbo_text.h. cffi releases the GIL around every one of them.

// Library
int32_t turbo_abi(void);
const char * turbo_last_error(void);
void turbo_string_free(char * text);
int32_t turbo_backend_init(void);
const char * turbo_build_info(void);
int32_t turbo_cpu_missing(char * buf, int32_t size);
void turbo_log_level(int32_t level);
int32_t turbo_log_pop(char * buf, int32_t size);
int64_t turbo_log_dropped(void);
int32_t turbo_device_count(void);
int32_t turbo_device_get(int32_t index, turbo_device * out);

// Model
void turbo_model_params_init(turbo_model_params * params);
int32_t turbo_model_load(const char * path, const turbo_model_params * params, turbo_model ** out);
void turbo_model_free(turbo_model * model);
int32_t turbo_model_get_facts(const turbo_model * model, turbo_model_facts * out);
int32_t turbo_model_get_layer(const turbo_model * model, int32_t layer, turbo_layer_facts * out);
int32_t turbo_model_tensor_buffer(const turbo_model * model, const char * name, char * buf, int32_t size);
int32_t turbo_model_meta_count(const turbo_model * model);
int32_t turbo_model_meta_key(const turbo_model * model, int32_t index, char * buf, int32_t size);
int32_t turbo_model_meta_value(const turbo_model * model, int32_t index, char * buf, int32_t size);

// LoRA
int32_t turbo_lora_load(turbo_model * model, const char * path, turbo_lora ** out);
int32_t turbo_lora_set(turbo_context * ctx, turbo_lora ** loras, const float * scales, int32_t n);

// KV types
int32_t turbo_kv_type_count(void);
int32_t turbo_kv_type_get(int32_t index, turbo_kv_type * out);
int32_t turbo_kv_select(const turbo_model * model, const char * k, const char * v, turbo_kv_type * out_k,
    turbo_kv_type * out_v);
int32_t turbo_kv_encode(const char * name, const float * src, int64_t n, void * dst, int64_t bytes);
int32_t turbo_kv_decode(const char * name, const void * src, int64_t bytes, float * dst, int64_t n);

// Context
void turbo_context_params_init(turbo_context_params * params);
int32_t turbo_context_new(turbo_model * model, const turbo_context_params * params, turbo_context ** out);
void turbo_context_free(turbo_context * ctx);
int32_t turbo_context_get_facts(const turbo_context * ctx, turbo_context_facts * out);
int32_t turbo_context_set_threads(turbo_context * ctx, int32_t n_threads, int32_t n_threads_batch);
int32_t turbo_kv_layers(const turbo_context * ctx, turbo_kv_layer * out, int32_t cap);
int32_t turbo_kv_fill(turbo_context * ctx, int32_t seq, int32_t n, uint32_t seed);
int32_t turbo_memory_breakdown(const turbo_context * ctx, turbo_memory_row * out, int32_t cap);

// Decode
int32_t turbo_context_decode(turbo_context * ctx, const int32_t * tokens, int32_t n, int32_t pos,
    int32_t seq, int32_t outputs);
int32_t turbo_context_decode_batch(turbo_context * ctx, const int32_t * tokens, const int32_t * pos,
    const int32_t * seq, const int8_t * outputs, int32_t n);
float * turbo_logits(turbo_context * ctx, int32_t * rows);
float * turbo_embedding(turbo_context * ctx, int32_t seq, int32_t index);
void turbo_abort_set(turbo_context * ctx, int32_t value);
int32_t turbo_abort_get(const turbo_context * ctx);
int32_t turbo_perf_get(const turbo_context * ctx, turbo_perf * out);
void turbo_perf_reset(turbo_context * ctx);

// Cache content
int32_t turbo_memory_clear(turbo_context * ctx);
int32_t turbo_seq_rm(turbo_context * ctx, int32_t seq, int32_t p0, int32_t p1);
int32_t turbo_seq_cp(turbo_context * ctx, int32_t src, int32_t dst, int32_t p0, int32_t p1);
int32_t turbo_seq_keep(turbo_context * ctx, int32_t seq);
int32_t turbo_seq_add(turbo_context * ctx, int32_t seq, int32_t p0, int32_t p1, int32_t delta);
int32_t turbo_seq_range(turbo_context * ctx, int32_t seq, int32_t * first, int32_t * last);
int64_t turbo_state_size(turbo_context * ctx, int32_t seq);
int64_t turbo_state_get(turbo_context * ctx, int32_t seq, void * dst, int64_t bytes);
int64_t turbo_state_set(turbo_context * ctx, int32_t seq, const void * src, int64_t bytes);

// Vocabulary
int32_t turbo_vocab_get_facts(const turbo_model * model, turbo_vocab_facts * out);
int32_t turbo_vocab_is_eog(const turbo_model * model, int32_t token);
int32_t turbo_vocab_is_control(const turbo_model * model, int32_t token);
int32_t turbo_tokenize(const turbo_model * model, const char * text, int32_t bytes, int32_t * tokens,
    int32_t cap, bool add_special, bool parse_special, int32_t * n);
int32_t turbo_token_piece(const turbo_model * model, int32_t token, char * buf, int32_t cap, bool special);
int32_t turbo_detokenize(const turbo_model * model, const int32_t * tokens, int32_t n_tokens, char * buf,
    int32_t cap, bool remove_special, bool unparse_special, int32_t * n);

// Sampling
void turbo_sampler_params_init(turbo_sampler_params * params);
int32_t turbo_sampler_new(const turbo_model * model, const turbo_sampler_params * params, turbo_sampler ** out);
void turbo_sampler_free(turbo_sampler * sampler);
int32_t turbo_sampler_next(turbo_sampler * sampler, turbo_context * ctx, int32_t index, int32_t * token);
int32_t turbo_sampler_step(turbo_sampler * sampler, turbo_context * ctx, int32_t token, int32_t pos, int32_t seq,
    int32_t * next);
int32_t turbo_sampler_accept(turbo_sampler * sampler, int32_t token, bool generated);
int32_t turbo_sampler_reset(turbo_sampler * sampler);
int32_t turbo_sampler_complete(const turbo_sampler * sampler);
int32_t turbo_sampler_describe(const turbo_sampler * sampler, char ** out);

// Chat and structured output
int32_t turbo_chat_apply(const turbo_model * model, const char * request, char ** out);
int32_t turbo_chat_parse(const char * request, char ** out);
int32_t turbo_schema_to_grammar(const char * schema, char ** out);
