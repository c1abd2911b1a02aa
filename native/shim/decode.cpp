// Running batches: every reason for which llama_decode would abort or misbehave is checked first.
#include "device.h"
#include "handles.h"
#include "log_ring.h"

#include "llama-context.h"

#include <limits>

namespace {

int32_t check_batch(const turbo_context * ctx, const int32_t * tokens, int32_t n) {
    const int32_t limit = ctx->single_ubatch ? std::min(ctx->n_batch, ctx->n_ubatch) : ctx->n_batch;
    if (!tokens || n < 1) {
        return turbo_fail(TURBO_E_ARGUMENT, "the batch is empty");
    }
    if (n > limit) {
        return turbo_fail(TURBO_E_ARGUMENT, "the batch has %d tokens, this context takes at most %d", n, limit);
    }
    for (int32_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= ctx->model->n_vocab) {
            return turbo_fail(TURBO_E_ARGUMENT, "token %d at index %d is outside the vocabulary of %d", tokens[i], i,
                              ctx->model->n_vocab);
        }
    }
    return TURBO_OK;
}

int32_t check_place(const turbo_context * ctx, int32_t pos, int32_t n, int32_t seq) {
    if (seq < 0 || seq >= ctx->n_seq_max) {
        return turbo_fail(TURBO_E_ARGUMENT, "sequence %d, this context has 0 to %d", seq, ctx->n_seq_max - 1);
    }
    if (pos < 0 || pos > std::numeric_limits<int32_t>::max() - n) {
        return turbo_fail(TURBO_E_ARGUMENT, "position %d is out of range", pos);
    }
    return TURBO_OK;
}

int32_t run(turbo_context * ctx) {
    if (ctx->abort.load() != 0) {
        return turbo_fail(TURBO_E_ABORTED, "aborted before the batch was run");
    }
    int32_t n_outputs = 0;
    for (int32_t i = 0; i < ctx->batch.n_tokens; i++) {
        n_outputs += ctx->output_all || ctx->batch.logits[i] != 0;
    }
    if (n_outputs > ctx->n_outputs_max) {
        return turbo_fail(TURBO_E_ARGUMENT, "%d outputs asked, this context gives at most %d a batch (n_outputs_max)",
                          n_outputs, ctx->n_outputs_max);
    }
    ctx->n_outputs = 0;
    const int32_t ready = turbo_make_ready(*ctx);
    if (ready != TURBO_OK) {
        return ready;
    }
    turbo_log_mark();
    int32_t status = 0;
    try {
        const turbo_compute_scope scope;
        status = llama_decode(ctx->ctx, ctx->batch);
        if (turbo_device_took_back()) {
            turbo_device_drop_graphs(*ctx->ctx);
        }
    } catch (...) {
        return turbo_decode_broke(*ctx);
    }
    switch (status) {
        case 0:
            ctx->n_outputs = n_outputs;
            return TURBO_OK;
        case 1:
            return turbo_fail(TURBO_E_NO_SLOT, "the KV cache has no room for %d more tokens (n_ctx %u)",
                              ctx->batch.n_tokens, llama_n_ctx(ctx->ctx));
        case 2:
            return turbo_fail(TURBO_E_ABORTED, "aborted while the batch was running");
        case -1:
            return turbo_fail(TURBO_E_ARGUMENT, "llama_decode refused the batch: %s", turbo_log_reason().c_str());
        default: {
            ctx->unreserved = true;
            const std::string reason = turbo_log_reason();
            return turbo_fail(turbo_is_memory_reason(reason) ? TURBO_E_MEMORY : TURBO_E_DECODE,
                              "llama_decode failed with %d on %d tokens: %s", status, ctx->batch.n_tokens, reason.c_str());
        }
    }
}

}  // namespace

int32_t turbo_context_decode(turbo_context * ctx, const int32_t * tokens, int32_t n, int32_t pos, int32_t seq,
                             int32_t outputs) {
    int32_t status = check_batch(ctx, tokens, n);
    if (status == TURBO_OK) {
        status = check_place(ctx, pos, n, seq);
    }
    if (status == TURBO_OK && (outputs < TURBO_OUTPUT_NONE || outputs > TURBO_OUTPUT_ALL)) {
        status = turbo_fail(TURBO_E_ARGUMENT, "outputs is %d, allowed are 0, 1 and 2", outputs);
    }
    if (status != TURBO_OK) {
        return status;
    }
    return turbo_guard("decode", [&] {
        llama_batch & batch = ctx->batch;
        batch.n_tokens = n;
        for (int32_t i = 0; i < n; i++) {
            batch.token[i] = tokens[i];
            batch.pos[i] = pos + i;
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = seq;
            batch.logits[i] = outputs == TURBO_OUTPUT_ALL || (outputs == TURBO_OUTPUT_LAST && i == n - 1);
        }
        return run(ctx);
    });
}

int32_t turbo_context_decode_batch(turbo_context * ctx, const int32_t * tokens, const int32_t * pos,
                                   const int32_t * seq, const int8_t * outputs, int32_t n) {
    int32_t status = check_batch(ctx, tokens, n);
    for (int32_t i = 0; status == TURBO_OK && i < n; i++) {
        status = check_place(ctx, pos[i], 1, seq[i]);
    }
    if (status != TURBO_OK) {
        return status;
    }
    return turbo_guard("decode_batch", [&] {
        llama_batch & batch = ctx->batch;
        batch.n_tokens = n;
        for (int32_t i = 0; i < n; i++) {
            batch.token[i] = tokens[i];
            batch.pos[i] = pos[i];
            batch.n_seq_id[i] = 1;
            batch.seq_id[i][0] = seq[i];
            batch.logits[i] = outputs[i] != 0;
        }
        return run(ctx);
    });
}

float * turbo_logits(turbo_context * ctx, int32_t * rows) {
    float * logits = nullptr;
    *rows = 0;
    turbo_guard("logits", [&]() -> int32_t {
        if (ctx->n_outputs == 0) {
            return turbo_fail(TURBO_E_ARGUMENT, "the last decode had no outputs");
        }
        logits = llama_get_logits(ctx->ctx);
        *rows = logits ? ctx->n_outputs : 0;
        return TURBO_OK;
    });
    return logits;
}

float * turbo_embedding(turbo_context * ctx, int32_t seq, int32_t index) {
    float * embedding = nullptr;
    turbo_guard("embedding", [&]() -> int32_t {
        if (!ctx->output_all) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "the context was made without embeddings");
        }
        embedding = seq >= 0 ? llama_get_embeddings_seq(ctx->ctx, seq) : llama_get_embeddings_ith(ctx->ctx, index);
        return embedding ? TURBO_OK
                         : turbo_fail(TURBO_E_ARGUMENT, "no embedding for sequence %d, index %d", seq, index);
    });
    return embedding;
}

void turbo_abort_set(turbo_context * ctx, int32_t value) {
    ctx->abort.store(value);
}

int32_t turbo_abort_get(const turbo_context * ctx) {
    return ctx->abort.load();
}

int32_t turbo_perf_get(const turbo_context * ctx, turbo_perf * out) {
    const llama_perf_context_data data = llama_perf_context(ctx->ctx);
    out->prompt_ms = data.t_p_eval_ms;
    out->decode_ms = data.t_eval_ms;
    out->n_prompt = data.n_p_eval;
    out->n_decode = data.n_eval;
    out->n_reused = data.n_reused;
    return TURBO_OK;
}

void turbo_perf_reset(turbo_context * ctx) {
    llama_perf_context_reset(ctx->ctx);
}
