// Cache content: sequences and positions. Saved state is in state.cpp.
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

// A context that was given up counts as empty, so that whoever tidies up after the error can.
bool is_dead(const turbo_context * ctx) {
    return ctx->dead[0] != '\0';
}

int32_t check_memory(const turbo_context * ctx) {
    if (!llama_get_memory(ctx->ctx)) {
        return turbo_fail(TURBO_E_UNSUPPORTED, "this model has no KV cache");
    }
    return turbo_check_alive(*ctx);
}

// Runs a change of what the cache holds: one that stops half way leaves no known state.
template <typename F> int32_t change(turbo_context * ctx, const char * what, F && f) {
    return turbo_guard(what, [&]() -> int32_t {
        try {
            return f();
        } catch (...) {
            return turbo_change_broke(*ctx);
        }
    });
}

int32_t check_seq(const turbo_context * ctx, int32_t seq, int32_t lowest) {
    if (seq < lowest || seq >= ctx->n_seq_max) {
        return turbo_fail(TURBO_E_ARGUMENT, "sequence %d, this context has 0 to %d", seq, ctx->n_seq_max - 1);
    }
    return check_memory(ctx);
}

}  // namespace

bool turbo_can_shift(const turbo_context & ctx) {
    const llama_memory_t memory = llama_get_memory(ctx.ctx);
    if (!memory || !llama_memory_can_shift(memory)) {
        return false;
    }
    const auto caches = turbo_kv_caches(memory);
    return !caches.empty() && std::all_of(caches.begin(), caches.end(), [](const turbo_kv_cache_ref & ref) {
        return turbo_kv_access::can_turn(*ref.cache);
    });
}

int32_t turbo_memory_clear(turbo_context * ctx) {
    if (is_dead(ctx)) {
        return TURBO_OK;
    }
    const int32_t status = check_memory(ctx);
    return status != TURBO_OK ? status : change(ctx, "memory_clear", [&] {
        llama_memory_clear(llama_get_memory(ctx->ctx), true);
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_seq_rm(turbo_context * ctx, int32_t seq, int32_t p0, int32_t p1) {
    if (is_dead(ctx)) {
        return TURBO_OK;
    }
    const int32_t status = check_seq(ctx, seq, -1);
    return status != TURBO_OK ? status : change(ctx, "seq_rm", [&]() -> int32_t {
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
    return status != TURBO_OK ? status : change(ctx, "seq_cp", [&] {
        llama_memory_seq_cp(llama_get_memory(ctx->ctx), src, dst, p0, p1);
        return turbo_settle(*ctx);
    });
}

int32_t turbo_seq_keep(turbo_context * ctx, int32_t seq) {
    const int32_t status = check_seq(ctx, seq, 0);
    return status != TURBO_OK ? status : change(ctx, "seq_keep", [&] {
        // llama.cpp's own seq_keep looks at the stream of `seq` only, and leaves sequences of other streams.
        for (int32_t other = 0; other < ctx->n_seq_max; other++) {
            if (other != seq) {
                llama_memory_seq_rm(llama_get_memory(ctx->ctx), other, -1, -1);
            }
        }
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_seq_add(turbo_context * ctx, int32_t seq, int32_t p0, int32_t p1, int32_t delta) {
    const int32_t status = check_seq(ctx, seq, 0);
    return status != TURBO_OK ? status : change(ctx, "seq_add", [&]() -> int32_t {
        if (!turbo_can_shift(*ctx)) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "the positions of this cache cannot be shifted");
        }
        llama_memory_seq_add(llama_get_memory(ctx->ctx), seq, p0, p1, delta);
        return turbo_settle(*ctx);
    });
}

int32_t turbo_seq_range(turbo_context * ctx, int32_t seq, int32_t * first, int32_t * last) {
    *first = -1;
    *last = -1;
    if (is_dead(ctx)) {
        return TURBO_OK;
    }
    const int32_t status = check_seq(ctx, seq, 0);
    return status != TURBO_OK ? status : turbo_guard("seq_range", [&] {
        *first = llama_memory_seq_pos_min(llama_get_memory(ctx->ctx), seq);
        *last = llama_memory_seq_pos_max(llama_get_memory(ctx->ctx), seq);
        return (int32_t) TURBO_OK;
    });
}
