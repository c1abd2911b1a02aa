// Making a context: bad parameters are refused here, where llama.cpp would abort, crash or substitute.
#include "handles.h"
#include "log_ring.h"

#include "llama-context.h"
#include "llama-model.h"
#include "turbo/llama/kv_plan.h"

#include "ggml.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>

namespace {

constexpr int64_t POLL_INTERVAL_US = 50 * 1000;
constexpr int32_t MAX_THREADS = 512;  // ggml's own limit
constexpr int32_t MAX_SEQUENCES = LLAMA_MAX_SEQ;

// Runs in the thread that called decode, between graph nodes.
bool on_abort_poll(void * data) {
    turbo_context * ctx = static_cast<turbo_context *>(data);
    if (ctx->unstoppable) {
        return false;
    }
    if (ctx->abort.load(std::memory_order_relaxed) != 0) {
        return true;
    }
    if (ctx->poll) {
        const int64_t now = ggml_time_us();
        if (now >= ctx->poll_next_us) {
            ctx->poll_next_us = now + POLL_INTERVAL_US;
            if (ctx->poll(ctx->poll_data)) {
                ctx->abort.store(1);
                return true;
            }
        }
    }
    return false;
}

int32_t check_range(const char * name, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high) {
        return turbo_fail(TURBO_E_ARGUMENT, "%s is %lld, allowed are %lld to %lld", name, (long long) value,
                          (long long) low, (long long) high);
    }
    return TURBO_OK;
}

int32_t check_params(const turbo_context_params & p) {
    const struct {
        const char * name;
        int64_t value, low, high;
    } ranges[] = {
        { "n_ctx", p.n_ctx, 0, std::numeric_limits<int32_t>::max() },
        { "n_batch", p.n_batch, 1, std::numeric_limits<int32_t>::max() },
        { "n_ubatch", p.n_ubatch, 1, std::numeric_limits<int32_t>::max() },
        { "n_seq_max", p.n_seq_max, 1, MAX_SEQUENCES },
        { "n_outputs_max", p.n_outputs_max, 0, p.n_batch },
        { "n_threads", p.n_threads, 0, MAX_THREADS },
        { "n_threads_batch", p.n_threads_batch, 0, MAX_THREADS },
        { "flash_attn", p.flash_attn, -1, 1 },
        { "pooling_type", p.pooling_type, -1, 4 },
        { "rope_scaling", p.rope_scaling, -1, 3 },
        { "yarn_orig_ctx", p.yarn_orig_ctx, 0, std::numeric_limits<int32_t>::max() },
    };
    for (const auto & r : ranges) {
        const int32_t status = check_range(r.name, r.value, r.low, r.high);
        if (status != TURBO_OK) {
            return status;
        }
    }
    const float factors[] = { p.rope_freq_base,   p.rope_freq_scale, p.yarn_ext_factor,
                              p.yarn_attn_factor, p.yarn_beta_fast,  p.yarn_beta_slow };
    for (const float factor : factors) {
        if (!std::isfinite(factor)) {
            return turbo_fail(TURBO_E_ARGUMENT, "a RoPE or YaRN factor is not a finite number");
        }
    }
    return TURBO_OK;
}

int32_t default_threads() {
    const unsigned n = std::thread::hardware_concurrency();
    return n > 0 ? (int32_t) std::min(n, (unsigned) MAX_THREADS) : 4;
}

// Fills llama.cpp's parameters, after the KV types were found and resolved for this model.
int32_t fill_params(const turbo_model & model, const turbo_context_params & p, llama_context_params & out) {
    turbo_kv_type type_k;
    turbo_kv_type type_v;
    const int32_t status = turbo_kv_select(&model, p.type_k, p.type_v, &type_k, &type_v);
    if (status != TURBO_OK) {
        return status;
    }
    const bool needs_flash = ggml_is_quantized((ggml_type) type_v.id) || type_k.is_turbo;
    if (needs_flash && p.flash_attn == LLAMA_FLASH_ATTN_TYPE_DISABLED) {
        return turbo_fail(TURBO_E_UNSUPPORTED, "KV types %s/%s need flash attention, which was switched off",
                          p.type_k, p.type_v);
    }
    out = llama_context_default_params();
    out.n_ctx = (uint32_t) p.n_ctx;
    out.n_batch = (uint32_t) p.n_batch;
    out.n_ubatch = (uint32_t) std::min(p.n_ubatch, p.n_batch);
    out.n_seq_max = (uint32_t) p.n_seq_max;
    out.n_outputs_max = (uint32_t) p.n_outputs_max;
    out.n_threads = p.n_threads > 0 ? p.n_threads : default_threads();
    out.n_threads_batch = p.n_threads_batch > 0 ? p.n_threads_batch : out.n_threads;
    out.flash_attn_type = (enum llama_flash_attn_type) p.flash_attn;
    out.pooling_type = (enum llama_pooling_type) p.pooling_type;
    out.rope_scaling_type = (enum llama_rope_scaling_type) p.rope_scaling;
    out.rope_freq_base = p.rope_freq_base;
    out.rope_freq_scale = p.rope_freq_scale;
    out.yarn_ext_factor = p.yarn_ext_factor;
    out.yarn_attn_factor = p.yarn_attn_factor;
    out.yarn_beta_fast = p.yarn_beta_fast;
    out.yarn_beta_slow = p.yarn_beta_slow;
    out.yarn_orig_ctx = (uint32_t) p.yarn_orig_ctx;
    out.type_k = (ggml_type) type_k.id;
    out.type_v = (ggml_type) type_v.id;
    out.embeddings = p.embeddings;
    out.offload_kqv = p.offload_kqv;
    out.op_offload = p.op_offload;
    out.swa_full = p.swa_full;
    out.kv_unified = p.kv_unified;
    out.no_perf = p.no_perf;
    return TURBO_OK;
}

// The layers that get a K type of their own, from "layer=type,layer=type".
int32_t read_plan(const turbo_model & model, const turbo_context_params & p, turbo_kv_plan & plan) {
    std::istringstream entries(p.type_k_layers != nullptr ? p.type_k_layers : "");
    for (std::string entry; std::getline(entries, entry, ',');) {
        const size_t equals = entry.find('=');
        const int layer = atoi(entry.c_str());
        if (equals == std::string::npos || layer < 0 || layer >= (int) model.model->hparams.n_layer_all) {
            return turbo_fail(TURBO_E_ARGUMENT, "'%s' is no layer=type of a model with %u layers", entry.c_str(),
                              model.model->hparams.n_layer_all);
        }
        turbo_kv_type type_k;
        turbo_kv_type type_v;
        const int32_t status = turbo_kv_select(&model, entry.c_str() + equals + 1, p.type_v, &type_k, &type_v);
        if (status != TURBO_OK) {
            return status;
        }
        plan.type_k.resize(model.model->hparams.n_layer_all, GGML_TYPE_COUNT);
        plan.type_k[(size_t) layer] = (ggml_type) type_k.id;
    }
    return TURBO_OK;
}

}  // namespace

void turbo_context_params_init(turbo_context_params * params) {
    const llama_context_params d = llama_context_default_params();
    *params = turbo_context_params{};
    params->n_batch = (int32_t) d.n_batch;
    params->n_ubatch = (int32_t) d.n_ubatch;
    params->n_seq_max = (int32_t) d.n_seq_max;
    params->flash_attn = d.flash_attn_type;
    params->pooling_type = d.pooling_type;
    params->rope_scaling = d.rope_scaling_type;
    params->rope_freq_base = d.rope_freq_base;
    params->rope_freq_scale = d.rope_freq_scale;
    params->yarn_ext_factor = d.yarn_ext_factor;
    params->yarn_attn_factor = d.yarn_attn_factor;
    params->yarn_beta_fast = d.yarn_beta_fast;
    params->yarn_beta_slow = d.yarn_beta_slow;
    params->type_k = "f16";
    params->type_v = "f16";
    params->offload_kqv = d.offload_kqv;
    params->op_offload = d.op_offload;
    params->no_perf = true;
}

int32_t turbo_context_new(turbo_model * model, const turbo_context_params * params, turbo_context ** out) {
    *out = nullptr;
    return turbo_guard("context_new", [&]() -> int32_t {
        llama_context_params native;
        int32_t status = check_params(*params);
        if (status == TURBO_OK) {
            status = fill_params(*model, *params, native);
        }
        if (status != TURBO_OK) {
            return status;
        }
        if (model->model->hparams.vocab_only) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "the model was loaded with vocab_only: it has no weights to run");
        }
        if (params->pooling_type == LLAMA_POOLING_TYPE_RANK && !model->model->cls && !model->model->cls_out) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "pooling 'rank' needs a classification head, which this model lacks");
        }
        turbo_kv_plan plan;
        status = read_plan(*model, *params, plan);
        if (status != TURBO_OK) {
            return status;
        }
        auto ctx = std::make_unique<turbo_context>();
        native.abort_callback = on_abort_poll;
        native.abort_callback_data = ctx.get();
        turbo_log_mark();
        const turbo_kv_plan_scope scope(&plan);
        const turbo_abort_scope aborts;
        ctx->ctx = llama_init_from_model(model->model, native);
        if (!ctx->ctx) {
            const std::string reason = turbo_log_reason();
            return turbo_fail(turbo_is_memory_reason(reason) ? TURBO_E_MEMORY : TURBO_E_UNSUPPORTED,
                              "cannot create the context: %s", reason.empty() ? "no reason given" : reason.c_str());
        }
        const llama_cparams & cparams = ctx->ctx->get_cparams();
        ctx->model = model;
        ctx->n_batch = (int32_t) cparams.n_batch;
        ctx->n_ubatch = (int32_t) cparams.n_ubatch;
        ctx->n_seq_max = (int32_t) cparams.n_seq_max;
        ctx->n_outputs_max = (int32_t) cparams.n_outputs_max;
        ctx->output_all = cparams.embeddings;
        ctx->single_ubatch = !cparams.causal_attn || !llama_get_memory(ctx->ctx);
        ctx->batch = llama_batch_init(ctx->n_batch, 0, 1);
        ctx->poll = params->poll;
        ctx->poll_data = params->poll_data;
        *out = ctx.release();
        return TURBO_OK;
    });
}

void turbo_context_free(turbo_context * ctx) {
    if (ctx) {
        // What was given up may hold pointers to what is gone, and a lost device answers every call with its error again:
        // freeing would end the process, so that memory stays taken until it ends by itself.
        if (ctx->dead[0] == '\0' && !turbo_device_lost()) {
            llama_free(ctx->ctx);
        }
        llama_batch_free(ctx->batch);
        delete ctx;
    }
}

int32_t turbo_context_get_facts(const turbo_context * ctx, turbo_context_facts * out) {
    return turbo_guard("context_facts", [&] {
        const llama_cparams & cparams = ctx->ctx->get_cparams();
        const llama_model * m = ctx->model->model;
        const llama_memory_t memory = llama_get_memory(ctx->ctx);
        *out = turbo_context_facts{};
        out->n_ctx = (int32_t) cparams.n_ctx;
        out->n_ctx_seq = (int32_t) cparams.n_ctx_seq;
        out->n_batch = ctx->n_batch;
        out->n_ubatch = ctx->n_ubatch;
        out->n_seq_max = ctx->n_seq_max;
        out->n_threads = cparams.n_threads;
        out->n_threads_batch = cparams.n_threads_batch;
        const bool ranks = cparams.pooling_type == LLAMA_POOLING_TYPE_RANK;
        out->n_embd_out = ranks ? (int32_t) llama_model_n_cls_out(m) : llama_model_n_embd_out(m);
        out->pooling_type = cparams.pooling_type;
        out->flash_attn = cparams.flash_attn;
        out->kv_unified = cparams.kv_unified;
        out->can_shift = turbo_can_shift(*ctx);
        out->has_memory = memory != nullptr;
        out->is_recurrent = llama_model_is_recurrent(m) || llama_model_is_hybrid(m);
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_context_set_threads(turbo_context * ctx, int32_t n_threads, int32_t n_threads_batch) {
    int32_t status = check_range("n_threads", n_threads, 1, MAX_THREADS);
    if (status == TURBO_OK) {
        status = check_range("n_threads_batch", n_threads_batch, 1, MAX_THREADS);
    }
    if (status == TURBO_OK) {
        llama_set_n_threads(ctx->ctx, n_threads, n_threads_batch);
    }
    return status;
}
