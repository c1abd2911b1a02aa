// Cache content: sequences, positions, and saved state.
#include "bounded.h"
#include "handles.h"
#include "kv_access.h"
#include "log_ring.h"

#include "llama-context.h"
#include "llama-model.h"
#include "turbo/llama/kv_caches.h"

#include "ggml.h"

#include <algorithm>
#include <string>

namespace {

int32_t check_memory(const turbo_context * ctx) {
    if (!llama_get_memory(ctx->ctx)) {
        return turbo_fail(TURBO_E_UNSUPPORTED, "this model has no KV cache");
    }
    return TURBO_OK;
}

int32_t check_seq(const turbo_context * ctx, int32_t seq, int32_t lowest) {
    if (seq < lowest || seq >= ctx->n_seq_max) {
        return turbo_fail(TURBO_E_ARGUMENT, "sequence %d, this context has 0 to %d", seq, ctx->n_seq_max - 1);
    }
    return check_memory(ctx);
}

// Runs a state function that returns a byte count, 0 for failure.
template <typename F> int64_t state_call(const char * what, F && f) {
    int64_t bytes = 0;
    const turbo_abort_scope scope;
    turbo_log_mark();
    const int32_t status = turbo_guard(what, [&]() -> int32_t {
        bytes = (int64_t) f();
        return bytes > 0 ? TURBO_OK : turbo_fail(TURBO_E_STATE, "%s: %s", what, turbo_log_reason().c_str());
    });
    return status == TURBO_OK ? bytes : status;
}

}  // namespace

bool turbo_can_shift(const turbo_context & ctx) {
    const llama_memory_t memory = llama_get_memory(ctx.ctx);
    if (!memory || !llama_memory_can_shift(memory)) {
        return false;
    }
    // Upstream aborts when it shifts a cache without layers, as a model has whose layers all use a sliding window.
    const auto caches = turbo_kv_caches(memory);
    return !caches.empty() && std::all_of(caches.begin(), caches.end(), [](const turbo_kv_cache_ref & ref) {
        return turbo_kv_access::count(*ref.cache) > 0;
    });
}

int32_t turbo_memory_clear(turbo_context * ctx) {
    const int32_t status = check_memory(ctx);
    return status != TURBO_OK ? status : turbo_guard("memory_clear", [&] {
        llama_memory_clear(llama_get_memory(ctx->ctx), true);
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_seq_rm(turbo_context * ctx, int32_t seq, int32_t p0, int32_t p1) {
    const int32_t status = check_seq(ctx, seq, -1);
    return status != TURBO_OK ? status : turbo_guard("seq_rm", [&]() -> int32_t {
        if (!llama_memory_seq_rm(llama_get_memory(ctx->ctx), seq, p0, p1)) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "this memory cannot drop positions %d to %d of sequence %d", p0, p1,
                              seq);
        }
        return TURBO_OK;
    });
}

int32_t turbo_seq_cp(turbo_context * ctx, int32_t src, int32_t dst, int32_t p0, int32_t p1) {
    int32_t status = check_seq(ctx, src, 0);
    if (status == TURBO_OK) {
        status = check_seq(ctx, dst, 0);
    }
    // Between separate caches llama.cpp copies whole buffers only, and asserts on a part.
    if (status == TURBO_OK && src != dst && !ctx->ctx->get_cparams().kv_unified && (p0 > 0 || p1 >= 0)) {
        status = turbo_fail(TURBO_E_UNSUPPORTED, "a part of a sequence can be copied only with kv_unified");
    }
    return status != TURBO_OK ? status : turbo_guard("seq_cp", [&] {
        llama_memory_seq_cp(llama_get_memory(ctx->ctx), src, dst, p0, p1);
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_seq_keep(turbo_context * ctx, int32_t seq) {
    const int32_t status = check_seq(ctx, seq, 0);
    return status != TURBO_OK ? status : turbo_guard("seq_keep", [&] {
        llama_memory_seq_keep(llama_get_memory(ctx->ctx), seq);
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_seq_add(turbo_context * ctx, int32_t seq, int32_t p0, int32_t p1, int32_t delta) {
    int32_t status = check_seq(ctx, seq, 0);
    if (status == TURBO_OK && !turbo_can_shift(*ctx)) {
        status = turbo_fail(TURBO_E_UNSUPPORTED, "the positions of this cache cannot be shifted");
    }
    return status != TURBO_OK ? status : turbo_guard("seq_add", [&] {
        llama_memory_seq_add(llama_get_memory(ctx->ctx), seq, p0, p1, delta);
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_seq_range(turbo_context * ctx, int32_t seq, int32_t * first, int32_t * last) {
    *first = -1;
    *last = -1;
    const int32_t status = check_seq(ctx, seq, 0);
    return status != TURBO_OK ? status : turbo_guard("seq_range", [&] {
        *first = llama_memory_seq_pos_min(llama_get_memory(ctx->ctx), seq);
        *last = llama_memory_seq_pos_max(llama_get_memory(ctx->ctx), seq);
        return (int32_t) TURBO_OK;
    });
}

int64_t turbo_state_size(turbo_context * ctx, int32_t seq) {
    const int32_t status = check_seq(ctx, seq, -1);
    return status != TURBO_OK ? status : state_call("state_size", [&] {
        return seq < 0 ? llama_state_get_size(ctx->ctx) : llama_state_seq_get_size(ctx->ctx, seq);
    });
}

int64_t turbo_state_get(turbo_context * ctx, int32_t seq, void * dst, int64_t bytes) {
    const int64_t need = turbo_state_size(ctx, seq);
    if (need < 0) {
        return need;
    }
    if (!dst || bytes < need) {
        return turbo_fail(TURBO_E_ARGUMENT, "the state takes %lld bytes, the buffer has %lld", (long long) need,
                          (long long) bytes);
    }
    return state_call("state_get", [&] {
        uint8_t * to = static_cast<uint8_t *>(dst);
        return seq < 0 ? llama_state_get_data(ctx->ctx, to, (size_t) bytes)
                       : llama_state_seq_get_data(ctx->ctx, to, (size_t) bytes, seq);
    });
}

int64_t turbo_state_set(turbo_context * ctx, int32_t seq, const void * src, int64_t bytes) {
    const int32_t status = check_seq(ctx, seq, -1);
    if (status != TURBO_OK) {
        return status;
    }
    if (!src || bytes <= 0) {
        return turbo_fail(TURBO_E_ARGUMENT, "the saved state is empty");
    }
    ctx->n_outputs = 0;
    return state_call("state_set", [&] {
        const uint8_t * from = static_cast<const uint8_t *>(src);
        return seq < 0 ? llama_state_set_data(ctx->ctx, from, (size_t) bytes)
                       : llama_state_seq_set_data(ctx->ctx, from, (size_t) bytes, seq);
    });
}
