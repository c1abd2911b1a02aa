// The C surface of libllama_turbo, part two: vocabulary, sampling, chat templates. Same rules as turbo_shim.h.
#ifndef TURBO_TEXT_H
#define TURBO_TEXT_H

#include "turbo_shim.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---------------------------------------------------------------------------------------------------------------
// Vocabulary and tokenizer. Thread safe.
// ---------------------------------------------------------------------------------------------------------------

typedef struct turbo_vocab_facts {
    int32_t n_tokens;
    int32_t type;     // 0 none, 1 SPM, 2 BPE, 3 WPM, 4 UGM, 5 RWKV, 6 PLAMO2
    int32_t bos;      // token ids; -1 if the vocabulary has none
    int32_t eos;
    int32_t eot;
    int32_t nl;
    int32_t pad;
    int32_t sep;
    int32_t fim_pre;
    int32_t fim_suf;
    int32_t fim_mid;
    bool add_bos;     // the model expects BOS in front
    bool add_eos;
} turbo_vocab_facts;

TURBO_API int32_t turbo_vocab_get_facts(const turbo_model * model, turbo_vocab_facts * out);
TURBO_API int32_t turbo_vocab_is_eog(const turbo_model * model, int32_t token);      // 1, 0 or a negative status
TURBO_API int32_t turbo_vocab_is_control(const turbo_model * model, int32_t token);  // 1, 0 or a negative status

// Token ids of text. Writes at most `cap`; *n is how many there are. TURBO_OK even when cap was too small.
TURBO_API int32_t turbo_tokenize(const turbo_model * model, const char * text, int32_t bytes, int32_t * tokens,
                                 int32_t cap, bool add_special, bool parse_special, int32_t * n);
// Bytes of one token. Writes at most `cap`; returns how many bytes it has, or a negative status.
TURBO_API int32_t turbo_token_piece(const turbo_model * model, int32_t token, char * buf, int32_t cap, bool special);
// Bytes of tokens. Writes at most `cap`; *n is how many there are.
TURBO_API int32_t turbo_detokenize(const turbo_model * model, const int32_t * tokens, int32_t n_tokens, char * buf,
                                   int32_t cap, bool remove_special, bool unparse_special, int32_t * n);

// ---------------------------------------------------------------------------------------------------------------
// Sampling, by upstream's engine
// ---------------------------------------------------------------------------------------------------------------

typedef struct turbo_sampler turbo_sampler;

typedef struct turbo_sampler_params {
    uint32_t seed;
    int32_t min_keep;            // candidates every filter leaves at least
    float temperature;           // <= 0: greedy
    float dynatemp_range;        // 0 = static temperature
    float dynatemp_exponent;
    int32_t top_k;               // <= 0: off
    float top_p;                 // 1: off
    float min_p;                 // 0: off
    float typical_p;             // 1: off
    float top_n_sigma;           // < 0: off
    float xtc_probability;       // 0: off
    float xtc_threshold;
    int32_t penalty_last_n;      // tokens looked back at; 0: off
    float repeat_penalty;        // 1: off
    float frequency_penalty;     // 0: off
    float presence_penalty;      // 0: off
    float dry_multiplier;        // 0: off
    float dry_base;
    int32_t dry_allowed_length;
    int32_t dry_penalty_last_n;
    const char * dry_breakers;   // zero-separated, or NULL for the default set
    int32_t dry_breakers_bytes;
    int32_t mirostat;            // 0 off, 1, 2
    float mirostat_tau;
    float mirostat_eta;
    float adaptive_target;       // used when the order names adaptive_p
    float adaptive_decay;
    const char * order;          // "penalties;dry;top_k;...", or NULL for llama.cpp's order
    const char * grammar;        // GBNF with a rule "root", or NULL
    bool grammar_lazy;           // constrain only after a trigger
    const char * triggers;       // JSON array from turbo_chat_apply, or NULL
    const int32_t * bias_tokens;
    const float * bias_values;   // added to the logit; -INFINITY forbids
    int32_t n_bias;
    bool ignore_eos;
    bool no_perf;
} turbo_sampler_params;

TURBO_API void turbo_sampler_params_init(turbo_sampler_params * params);  // llama.cpp's defaults
TURBO_API int32_t turbo_sampler_new(const turbo_model * model, const turbo_sampler_params * params,
                                    turbo_sampler ** out);
TURBO_API void turbo_sampler_free(turbo_sampler * sampler);
// Samples from logit row `index` of the last decode (-1 = last) and accepts the token.
TURBO_API int32_t turbo_sampler_next(turbo_sampler * sampler, turbo_context * ctx, int32_t index, int32_t * token);
// turbo_context_decode of one token, and turbo_sampler_next from its logits: one call a token for loops. When it fails,
// *next says how far it came.
#define TURBO_STEP_NOT_RUN (-2)     // the token is not in the cache
#define TURBO_STEP_NOT_CHOSEN (-1)  // it is, but no next one was chosen
TURBO_API int32_t turbo_sampler_step(turbo_sampler * sampler, turbo_context * ctx, int32_t token, int32_t pos,
                                     int32_t seq, int32_t * next);
// Tells the sampler of a token it did not choose. generated = false leaves the grammar alone (prompt tokens).
TURBO_API int32_t turbo_sampler_accept(turbo_sampler * sampler, int32_t token, bool generated);
TURBO_API int32_t turbo_sampler_reset(turbo_sampler * sampler);  // forgets history, random numbers, grammar state
// 1 if the text satisfies the grammar and no further token would, else 0 (also without a grammar, or a lazy one).
TURBO_API int32_t turbo_sampler_complete(const turbo_sampler * sampler);
// The chain as text, for reports.
TURBO_API int32_t turbo_sampler_describe(const turbo_sampler * sampler, char ** out);

// ---------------------------------------------------------------------------------------------------------------
// Chat templates and structured output, by upstream's engines; JSON in, JSON out
// ---------------------------------------------------------------------------------------------------------------

// request: {messages, tools?, tool_choice?, template?, add_generation_prompt?, enable_thinking?, json_schema?,
//           template_kwargs?, parallel_tool_calls?, reasoning_format?}
// out:     {prompt, format, parser, generation_prompt, grammar, grammar_lazy, triggers, stops, supports_thinking}
TURBO_API int32_t turbo_chat_apply(const turbo_model * model, const char * request, char ** out);
// request: {text, partial, format, parser, generation_prompt, reasoning_format?}; out: the assistant message
TURBO_API int32_t turbo_chat_parse(const char * request, char ** out);
TURBO_API int32_t turbo_schema_to_grammar(const char * schema, char ** out);

#ifdef __cplusplus
}
#endif

#endif  // TURBO_TEXT_H
