// Saved state of a context: attention caches in our own format (kv_state.h), recurrent state in llama.cpp's. Memories of
// other kinds are left to llama.cpp altogether.
#include "handles.h"
#include "kv_state.h"
#include "log_ring.h"

#include "llama-context.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"
#include "llama-memory-recurrent.h"
#include "turbo/llama/kv_caches.h"

#include <algorithm>
#include <string>

namespace {

constexpr uint32_t STATE_MAGIC = 0x31534b54;  // "TKS1"

llama_memory_recurrent * recurrent_part(llama_memory_i * memory) {
    if (const auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return hybrid->get_mem_recr();
    }
    if (const auto * hybrid_iswa = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return hybrid_iswa->get_mem_recr();
    }
    return nullptr;
}

bool own_format(llama_memory_i * memory) {
    const auto caches = turbo_kv_caches(memory);
    return !caches.empty() && std::all_of(caches.begin(), caches.end(), [](const turbo_kv_cache_ref & ref) {
        return turbo_kv_state::supported(*ref.cache);
    });
}

size_t write_state(turbo_context * ctx, int32_t seq, uint8_t * dst, size_t size) {
    llama_memory_i * memory = llama_get_memory(ctx->ctx);
    if (!own_format(memory)) {
        if (!dst) {
            return seq < 0 ? llama_state_get_size(ctx->ctx) : llama_state_seq_get_size(ctx->ctx, seq);
        }
        return seq < 0 ? llama_state_get_data(ctx->ctx, dst, size) : llama_state_seq_get_data(ctx->ctx, dst, size, seq);
    }
    turbo_state_writer io(dst, size);
    io.value(STATE_MAGIC);
    for (const turbo_kv_cache_ref & ref : turbo_kv_caches(memory)) {
        turbo_kv_state::write(*ref.cache, seq, io);
    }
    if (const llama_memory_recurrent * recurrent = recurrent_part(memory)) {
        recurrent->state_write(io, seq, 0);
    }
    return io.n_bytes();
}

void empty(llama_memory_i * memory, int32_t seq) {
    if (seq < 0) {
        memory->clear(true);
    } else {
        memory->seq_rm(seq, -1, -1);
    }
}

size_t read_state(turbo_context * ctx, int32_t seq, const uint8_t * src, size_t size) {
    llama_memory_i * memory = llama_get_memory(ctx->ctx);
    if (!own_format(memory)) {
        return seq < 0 ? llama_state_set_data(ctx->ctx, src, size) : llama_state_seq_set_data(ctx->ctx, src, size, seq);
    }
    turbo_state_reader io(src, size);
    if (io.value<uint32_t>() != STATE_MAGIC) {
        throw std::runtime_error("these are no bytes of a saved cache");
    }
    const auto caches = turbo_kv_caches(memory);
    std::vector<std::vector<turbo_kv_saved_stream>> saved;
    for (const turbo_kv_cache_ref & ref : caches) {
        saved.push_back(turbo_kv_state::read(*ref.cache, seq, io));
    }
    llama_memory_recurrent * recurrent = recurrent_part(memory);
    if (!recurrent && io.left() != 0) {
        throw std::runtime_error("bytes are left over behind the saved cache");
    }
    empty(memory, seq);
    for (size_t i = 0; i < caches.size(); i++) {
        turbo_kv_state::apply(*caches[i].cache, seq, saved[i]);
    }
    if (recurrent) {
        try {
            recurrent->state_read(io, seq, 0);
        } catch (...) {
            empty(memory, seq);
            throw;
        }
    }
    return io.n_bytes();
}

// Checks the arguments, and carries out what waits for the next decode.
int32_t prepare(turbo_context * ctx, int32_t seq) {
    if (seq < -1 || seq >= ctx->n_seq_max) {
        return turbo_fail(TURBO_E_ARGUMENT, "sequence %d, this context has 0 to %d", seq, ctx->n_seq_max - 1);
    }
    return llama_get_memory(ctx->ctx) ? turbo_settle(*ctx)
                                      : turbo_fail(TURBO_E_UNSUPPORTED, "this model has no KV cache");
}

// Runs a state function that returns a byte count, 0 for a failure whose reason is in the log.
template <typename F> int64_t state_call(const char * what, F && f) {
    const turbo_guard_scope guard;
    const turbo_abort_scope scope;
    turbo_log_mark();
    try {
        const int64_t bytes = (int64_t) f();
        return bytes > 0 ? bytes : turbo_fail(TURBO_E_STATE, "%s: %s", what, turbo_log_reason().c_str());
    } catch (const std::bad_alloc &) {
        return turbo_fail(TURBO_E_MEMORY, "%s: out of memory", what);
    } catch (const turbo_device_error & error) {
        return turbo_fail(error.out_of_memory ? TURBO_E_MEMORY : TURBO_E_DECODE, "%s: %s", what, error.what());
    } catch (const std::exception & error) {
        return turbo_fail(TURBO_E_STATE, "%s: %s", what, error.what());
    }
}

}  // namespace

int64_t turbo_state_size(turbo_context * ctx, int32_t seq) {
    const int32_t status = prepare(ctx, seq);
    return status != TURBO_OK ? status : state_call("state_size", [&] { return write_state(ctx, seq, nullptr, 0); });
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
    return state_call("state_get", [&] { return write_state(ctx, seq, static_cast<uint8_t *>(dst), (size_t) bytes); });
}

int64_t turbo_state_set(turbo_context * ctx, int32_t seq, const void * src, int64_t bytes) {
    const int32_t status = prepare(ctx, seq);
    if (status != TURBO_OK) {
        return status;
    }
    if (!src || bytes <= 0) {
        return turbo_fail(TURBO_E_ARGUMENT, "the saved state is empty");
    }
    ctx->n_outputs = 0;
    return state_call("state_set",
                      [&] { return read_state(ctx, seq, static_cast<const uint8_t *>(src), (size_t) bytes); });
}
