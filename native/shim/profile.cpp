// Times single graph operations through the scheduler's callback.
#include "turbo_profile.h"

#include "handles.h"
#include "profile_record.h"

#include "llama-context.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <chrono>

namespace {

int64_t now_ns() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int64_t bytes_touched(const ggml_tensor * t) {
    int64_t bytes = (int64_t) ggml_nbytes(t);
    for (const ggml_tensor * source : t->src) {
        bytes += source != nullptr ? (int64_t) ggml_nbytes(source) : 0;
    }
    return bytes;
}

// Asked before each node (its answer makes the node run alone) and told after it.
bool on_node(ggml_tensor * t, bool ask, void * user_data) {
    auto * record = static_cast<turbo_profile_record *>(user_data);
    if (ask) {
        record->node_start_ns = now_ns();
        return true;
    }
    if (record->rows.size() < record->capacity) {
        turbo_profile_row row{};
        turbo_copy_name(row.op, sizeof(row.op), ggml_op_desc(t));
        turbo_copy_name(row.tensor, sizeof(row.tensor), t->name);
        row.start_ns = record->node_start_ns - record->start_ns;
        row.end_ns = now_ns() - record->start_ns;
        row.bytes = bytes_touched(t);
        record->rows.push_back(row);
    }
    return true;
}

// llama.cpp takes the callback from the context's parameters whenever it builds a graph, so it has to stand there; the
// scheduler holds the one of the graph in use.
void set_callback(llama_context * ctx, ggml_backend_sched_eval_callback callback, void * user_data) {
    auto & params = const_cast<llama_cparams &>(ctx->get_cparams());
    params.cb_eval = callback;
    params.cb_eval_user_data = user_data;
    ggml_backend_sched_set_eval_callback(ctx->get_sched(), callback, user_data);
}

}  // namespace

int32_t turbo_profile_start(turbo_context * ctx, int32_t capacity) {
    return turbo_guard("profile_start", [&]() -> int32_t {
        if (capacity <= 0) {
            return turbo_fail(TURBO_E_ARGUMENT, "a profile of %d rows holds nothing", capacity);
        }
        ctx->profile = std::make_unique<turbo_profile_record>();
        ctx->profile->capacity = (size_t) capacity;
        ctx->profile->start_ns = now_ns();
        set_callback(ctx->ctx, on_node, ctx->profile.get());
        return TURBO_OK;
    });
}

int32_t turbo_profile_stop(turbo_context * ctx) {
    return turbo_guard("profile_stop", [&]() -> int32_t {
        if (!ctx->profile) {
            return turbo_fail(TURBO_E_ARGUMENT, "no profile was started");
        }
        set_callback(ctx->ctx, nullptr, nullptr);
        return TURBO_OK;
    });
}

int32_t turbo_profile_read(const turbo_context * ctx, turbo_profile_row * out, int32_t cap) {
    if (!ctx->profile) {
        return turbo_fail(TURBO_E_ARGUMENT, "no profile was started");
    }
    const std::vector<turbo_profile_row> & rows = ctx->profile->rows;
    std::copy_n(rows.begin(), std::min<size_t>(rows.size(), (size_t) std::max(cap, 0)), out);
    return (int32_t) rows.size();
}
