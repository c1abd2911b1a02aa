// Vocabulary facts and the tokenizer.
#include "bounded.h"
#include "handles.h"
#include "turbo_text.h"

#include <limits>
#include <stdexcept>

namespace {

// Some pre-tokenizers are regular expressions, which the standard library matches with a recursion for each character of a
// long word or a run of spaces: up to 700 bytes of stack each. Longer texts get a stack of their own.
constexpr int32_t SHALLOW_TEXT_BYTES = 4096;
constexpr size_t BASE_STACK_BYTES = 4u << 20;
constexpr size_t STACK_BYTES_PER_TEXT_BYTE = 1024;

int32_t check_token(const turbo_model * model, int32_t token) {
    if (token < 0 || token >= model->n_vocab) {
        return turbo_fail(TURBO_E_ARGUMENT, "token %d is outside the vocabulary of %d", token, model->n_vocab);
    }
    return TURBO_OK;
}

int32_t check_has_vocab(const turbo_model * model) {
    if (llama_vocab_type(model->vocab) == LLAMA_VOCAB_TYPE_NONE) {
        return turbo_fail(TURBO_E_UNSUPPORTED, "this model has no tokenizer");
    }
    return TURBO_OK;
}

}  // namespace

int32_t turbo_vocab_get_facts(const turbo_model * model, turbo_vocab_facts * out) {
    return turbo_guard("vocab_facts", [&] {
        const llama_vocab * v = model->vocab;
        *out = turbo_vocab_facts{};
        out->n_tokens = model->n_vocab;
        out->type = llama_vocab_type(v);
        out->bos = llama_vocab_bos(v);
        out->eos = llama_vocab_eos(v);
        out->eot = llama_vocab_eot(v);
        out->nl = llama_vocab_nl(v);
        out->pad = llama_vocab_pad(v);
        out->sep = llama_vocab_sep(v);
        out->fim_pre = llama_vocab_fim_pre(v);
        out->fim_suf = llama_vocab_fim_suf(v);
        out->fim_mid = llama_vocab_fim_mid(v);
        out->add_bos = llama_vocab_get_add_bos(v);
        out->add_eos = llama_vocab_get_add_eos(v);
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_vocab_is_eog(const turbo_model * model, int32_t token) {
    const int32_t status = check_token(model, token);
    return status != TURBO_OK ? status : llama_vocab_is_eog(model->vocab, token);
}

int32_t turbo_vocab_is_control(const turbo_model * model, int32_t token) {
    const int32_t status = check_token(model, token);
    return status != TURBO_OK ? status : llama_vocab_is_control(model->vocab, token);
}

int32_t turbo_tokenize(const turbo_model * model, const char * text, int32_t bytes, int32_t * tokens, int32_t cap,
                       bool add_special, bool parse_special, int32_t * n) {
    *n = 0;
    int32_t status = check_has_vocab(model);
    if (status == TURBO_OK && (!text || bytes < 0 || cap < 0)) {
        status = turbo_fail(TURBO_E_ARGUMENT, "a text of %d bytes, room for %d tokens", bytes, cap);
    }
    if (status != TURBO_OK) {
        return status;
    }
    const auto tokenize = [&]() -> int32_t {
        int32_t got = 0;
        try {
            got = llama_tokenize(model->vocab, text, bytes, tokens, cap, add_special, parse_special);
        } catch (const std::invalid_argument & error) {
            return turbo_fail(TURBO_E_ARGUMENT, "the text is not valid UTF-8: %s", error.what());
        }
        if (got == std::numeric_limits<int32_t>::min()) {
            return turbo_fail(TURBO_E_ARGUMENT, "a text of %d bytes has more tokens than can be counted", bytes);
        }
        *n = got < 0 ? -got : got;
        return TURBO_OK;
    };
    if (bytes <= SHALLOW_TEXT_BYTES) {
        return turbo_guard("tokenize", tokenize);
    }
    return turbo_deep("tokenize", BASE_STACK_BYTES + STACK_BYTES_PER_TEXT_BYTE * (size_t) bytes, tokenize);
}

int32_t turbo_token_piece(const turbo_model * model, int32_t token, char * buf, int32_t cap, bool special) {
    int32_t status = check_token(model, token);
    if (status == TURBO_OK) {
        status = check_has_vocab(model);
    }
    return status != TURBO_OK ? status : turbo_guard("token_piece", [&]() -> int32_t {
        const int32_t got = llama_token_to_piece(model->vocab, token, buf, cap, 0, special);
        return got < 0 ? -got : got;
    });
}

int32_t turbo_detokenize(const turbo_model * model, const int32_t * tokens, int32_t n_tokens, char * buf, int32_t cap,
                         bool remove_special, bool unparse_special, int32_t * n) {
    *n = 0;
    int32_t status = check_has_vocab(model);
    for (int32_t i = 0; status == TURBO_OK && i < n_tokens; i++) {
        status = check_token(model, tokens[i]);
    }
    return status != TURBO_OK ? status : turbo_guard("detokenize", [&]() -> int32_t {
        const int32_t got =
            llama_detokenize(model->vocab, tokens, n_tokens, buf, cap, remove_special, unparse_special);
        *n = got < 0 ? -got : got;
        return TURBO_OK;
    });
}
