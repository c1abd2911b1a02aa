// After a computation that did not end as it should. Three kinds of failure:
//   * llama_decode says so itself: the cache is as it was before the part that failed. Its buffers may be gone, so they are
//     made anew before the next computation.
//   * No memory on a device, as an exception (aborts.h): the same, and the batch is taken back out of the cache here.
//   * An exception of anything else, a failed allocation of this process among them: what llama.cpp was changing then is in
//     no known state. The context is given up: every later call says so, and closing it works.
#include "device.h"
#include "handles.h"
#include "log_ring.h"

#include "llama-context.h"

#include <algorithm>
#include <cstdlib>
#include <map>

namespace {

constexpr size_t SPARE_BYTES = 64 << 10;

void drop_batch(turbo_context & ctx) {
    const llama_memory_t memory = llama_get_memory(ctx.ctx);
    std::map<llama_seq_id, llama_pos> first;
    for (int32_t i = 0; memory && i < ctx.batch.n_tokens; i++) {
        const llama_pos pos = ctx.batch.pos[i];
        const auto entry = first.try_emplace(ctx.batch.seq_id[i][0], pos).first;
        entry->second = std::min(entry->second, pos);
    }
    for (const auto & [seq, pos] : first) {
        if (!llama_memory_seq_rm(memory, seq, pos, -1)) {
            llama_memory_seq_rm(memory, seq, -1, -1);  // a recurrent state cannot go back a part
        }
    }
}

int32_t give_up(turbo_context & ctx, int32_t status, const char * why) {
    turbo_copy_name(ctx.dead, sizeof(ctx.dead), why);
    return turbo_fail(status, "the computation failed: %s; this context cannot be used any more", why);
}

// The status of the exception being handled. `undo` runs where the context can go on.
template <typename F> int32_t classify(turbo_context & ctx, F && undo) {
    try {
        throw;
    } catch (const turbo_device_error & error) {
        if (!error.out_of_memory) {
            return give_up(ctx, TURBO_E_DECODE, error.what());
        }
        ctx.unreserved = true;
        return undo(error.what());
    } catch (const std::bad_alloc &) {
        return give_up(ctx, TURBO_E_MEMORY, "out of memory");
    } catch (const std::exception & error) {
        // an assertion on what malloc returned names what it compared with NULL
        const bool memory = std::string(error.what()).find("NULL") != std::string::npos ||
                            turbo_is_memory_reason(turbo_log_reason());
        return give_up(ctx, memory ? TURBO_E_MEMORY : TURBO_E_INTERNAL, error.what());
    }
}

int32_t reserve(turbo_context & ctx) {
    return turbo_guard("reserve", [&]() -> int32_t {
        const turbo_compute_scope scope;
        turbo_log_mark();
        try {
            turbo_device_drop_graphs(*ctx.ctx);
            // Asked to extract what it extracts already, llama.cpp makes its scheduler and buffers anew.
            ctx.ctx->set_embeddings_layer_inp(0, ctx.ctx->get_cparams().embeddings_layer_inp[0]);
            ctx.ctx->sched_reserve();
        } catch (const std::exception & error) {
            const std::string reason = turbo_log_reason();
            return turbo_fail(TURBO_E_MEMORY, "no memory for the buffers of a computation: %s",
                              reason.empty() ? error.what() : reason.c_str());
        }
        ctx.unreserved = false;
        return TURBO_OK;
    });
}

}  // namespace

int32_t turbo_check_alive(const turbo_context & ctx) {
    return ctx.dead[0] == '\0' ? TURBO_OK
                               : turbo_fail(TURBO_E_DECODE, "this context was given up: %s; make a new one", ctx.dead);
}

int32_t turbo_make_ready(turbo_context & ctx) {
    int32_t status = turbo_check_alive(ctx);
    // llama.cpp does not look at all of its small allocations. Where even this one fails, it is not asked.
    void * volatile spare = status == TURBO_OK ? malloc(SPARE_BYTES) : nullptr;
    if (status == TURBO_OK && !spare) {
        status = turbo_fail(TURBO_E_MEMORY, "no memory to compute with: %zu bytes could not be allocated", SPARE_BYTES);
    }
    free(spare);
    if (status == TURBO_OK && ctx.unreserved) {
        status = reserve(ctx);
    }
    return status == TURBO_OK && ctx.unsettled ? turbo_settle(ctx) : status;
}

int32_t turbo_decode_broke(turbo_context & ctx) {
    return classify(ctx, [&](const char * why) {
        drop_batch(ctx);
        return turbo_fail(TURBO_E_MEMORY, "%s, in a batch of %d tokens (%s)", why, ctx.batch.n_tokens,
                          turbo_device_free_text().c_str());
    });
}

int32_t turbo_change_broke(turbo_context & ctx) {
    return classify(ctx, [&](const char * why) { return turbo_fail(TURBO_E_MEMORY, "%s", why); });
}

int32_t turbo_settle(turbo_context & ctx) {
    ctx.unsettled = false;
    int32_t status = turbo_make_ready(ctx);
    if (status == TURBO_OK) {
        turbo_log_mark();
        ctx.unstoppable = true;
        status = turbo_guard("settle", [&]() -> int32_t {
            try {
                const turbo_compute_scope scope;
                ctx.ctx->memory_update(false);
                ctx.ctx->synchronize();
            } catch (...) {
                return classify(ctx, [&](const char * why) {
                    llama_memory_clear(llama_get_memory(ctx.ctx), false);  // some keys are turned, others are not
                    return turbo_fail(TURBO_E_MEMORY, "%s while cached keys were moved: the cache was emptied", why);
                });
            }
            const std::string reason = turbo_log_reason();
            if (reason.empty()) {
                return TURBO_OK;
            }
            ctx.unreserved = ctx.unsettled = true;
            return turbo_fail(turbo_is_memory_reason(reason) ? TURBO_E_MEMORY : TURBO_E_DECODE, "%s", reason.c_str());
        });
        ctx.unstoppable = false;
    } else {
        ctx.unsettled = true;
    }
    return status;
}
