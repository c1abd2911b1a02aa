// Centred keys at the C surface: calibration runs, mean keys as an object, installation in a context.
#include "turbo_keys.h"

#include "handles.h"
#include "log_ring.h"

#include "llama-context.h"
#include "llama-model.h"
#include "turbo/llama/kv_centering.h"

#include "ggml-backend.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

// Relative error of 3-bit trellis keys (docs/formats.md): the yardstick of a layer's disturbance.
constexpr double MSE_3_BIT = 0.0176;

struct layer_keys {
    turbo_keys_layer info;
    turbo_layer_fit fit;
};

// The moments of a layer in the order of turbo_keys_moments.
std::array<std::vector<float> *, 4> parts_of(turbo_moments & m) {
    return { &m.key[0], &m.key[1], &m.query[0], &m.query[1] };
}

// A float copy of a bias tensor of any type llama.cpp keeps biases in, empty if it is something else.
std::vector<float> read_bias(const ggml_tensor * bias) {
    std::vector<float> values;
    if (bias != nullptr && bias->type == GGML_TYPE_F32) {
        values.resize((size_t) ggml_nelements(bias));
        ggml_backend_tensor_get(bias, values.data(), 0, ggml_nbytes(bias));
    }
    return values;
}

}  // namespace

struct turbo_keys {
    std::vector<layer_keys> layers;
};

namespace {

// What calibration found, with the disturbance of every layer as it is and in its frame.
void summarise(const llama_context * ctx, const turbo_key_stats & stats, turbo_keys & keys) {
    for (const auto & [il, layer] : stats.layers) {
        turbo_layer_fit fit;
        fit.mean = turbo_mean_key(layer);
        fit.roped = layer.roped;
        fit.moments = layer.moments;
        const turbo_rope rope = layer.roped ? turbo_rope_of(ctx, il) : turbo_rope();
        const turbo_layer_frame frame = turbo_frame_of(rope, fit, layer.head_dim, (uint32_t) layer.n);
        turbo_keys_layer info{};
        info.layer = (int32_t) il;
        info.n_values = (int32_t) fit.mean.size();
        info.n_moments = fit.moments.empty() ? 0 : 4 * info.n_values;
        info.roped = layer.roped;
        info.before = turbo_center_disturbance(layer, turbo_no_frame(layer), MSE_3_BIT);
        info.after = turbo_center_disturbance(layer, frame, MSE_3_BIT);
        keys.layers.push_back({ info, std::move(fit) });
    }
}

}  // namespace

const char * turbo_keys_refusal(const turbo_model * model) {
    static thread_local std::string reason;
    reason = turbo_center_refusal(model->model);
    return reason.c_str();
}

int32_t turbo_keys_calibrate(turbo_model * model, const int32_t * tokens, int32_t n_tokens, int32_t n_threads,
                             turbo_progress_fn progress, void * user_data, turbo_keys ** out) {
    return turbo_guard("calibrate", [&]() -> int32_t {
        const std::string refusal = turbo_center_refusal(model->model);
        if (!refusal.empty()) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "keys of this model are not centred: %s", refusal.c_str());
        }
        if (n_tokens < 16) {
            return turbo_fail(TURBO_E_ARGUMENT, "calibration needs at least 16 tokens, got %d", n_tokens);
        }
        for (int32_t i = 0; i < n_tokens; i++) {
            if (tokens[i] < 0 || tokens[i] >= model->n_vocab) {
                return turbo_fail(TURBO_E_ARGUMENT, "token %d at %d is outside the vocabulary of %d", tokens[i], i, model->n_vocab);
            }
        }
        turbo_key_stats stats;
        const auto report = [&](float done) { return progress == nullptr || progress(done, user_data); };
        stats.layer_done = [&](int64_t n) { return report((float) n / (float) model->model->hparams.n_layer_all); };
        llama_context_params params = llama_context_default_params();
        params.n_ctx = (uint32_t) n_tokens;
        params.n_batch = params.n_ubatch = (uint32_t) n_tokens;  // what key_stats.h asks for
        params.n_threads = params.n_threads_batch =
            n_threads > 0 ? n_threads : (int32_t) std::max(1u, std::thread::hardware_concurrency());
        params.type_k = params.type_v = GGML_TYPE_F16;
        params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;  // queries are read from its node
        params.op_offload = false;  // a layer's keys come straight from its RoPE, not as a copy from another device
        params.cb_eval = turbo_key_stats::observe;
        params.cb_eval_user_data = &stats;
        turbo_log_mark();
        std::unique_ptr<llama_context, decltype(&llama_free)> ctx(llama_init_from_model(model->model, params), llama_free);
        if (!ctx) {
            return turbo_fail(TURBO_E_MEMORY, "no context for calibration: %s", turbo_log_reason().c_str());
        }
        stats.ctx = ctx.get();
        stats.n_threads = params.n_threads;
        std::vector<int32_t> text(tokens, tokens + n_tokens);
        const bool begun = report(0.0f);
        const int32_t status = begun ? llama_decode(ctx.get(), llama_batch_get_one(text.data(), n_tokens)) : 0;
        if (status != 0) {
            return turbo_fail(TURBO_E_DECODE, "calibration: llama_decode returned %d", status);
        }
        if (!begun || stats.stopped || !report(1.0f)) {
            return turbo_fail(TURBO_E_ABORTED, "calibration was stopped");
        }
        auto keys = std::make_unique<turbo_keys>();
        summarise(ctx.get(), stats, *keys);
        *out = keys.release();
        return TURBO_OK;
    });
}

int32_t turbo_keys_from_bias(turbo_model * model, turbo_keys ** out) {
    return turbo_guard("keys_from_bias", [&]() -> int32_t {
        auto keys = std::make_unique<turbo_keys>();
        const llama_hparams & hparams = model->model->hparams;
        for (uint32_t il = 0; il < hparams.n_layer_all; il++) {
            std::vector<float> bias = hparams.has_kv(il) ? read_bias(model->model->layers[il].wk_b) : std::vector<float>();
            if (!bias.empty() && bias.size() == hparams.n_embd_k_gqa(il)) {
                turbo_keys_layer info{};
                info.layer = (int32_t) il;
                info.n_values = (int32_t) bias.size();
                info.roped = hparams.rope_type != LLAMA_ROPE_TYPE_NONE && hparams.has_rope(il);
                keys->layers.push_back({ info, { std::move(bias), {}, info.roped } });
            }
        }
        if (keys->layers.empty()) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "this model has no K bias to centre by; calibrate instead");
        }
        *out = keys.release();
        return TURBO_OK;
    });
}

int32_t turbo_keys_new(turbo_keys ** out) {
    return turbo_guard("keys_new", [&] {
        *out = new turbo_keys();
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_keys_set(turbo_keys * keys, const turbo_keys_layer * layer, const float * values, const float * moments) {
    return turbo_guard("keys_set", [&]() -> int32_t {
        if (layer->layer < 0 || layer->n_values <= 0 || (layer->n_moments != 0 && layer->n_moments != 4 * layer->n_values)) {
            return turbo_fail(TURBO_E_ARGUMENT, "layer %d with %d values and %d moments is no mean key", layer->layer, layer->n_values,
                              layer->n_moments);
        }
        layer_keys entry = { *layer, { std::vector<float>(values, values + layer->n_values), {}, layer->roped } };
        if (layer->n_moments != 0) {
            for (std::vector<float> * part : parts_of(entry.fit.moments)) {
                part->assign(moments, moments + layer->n_values);
                moments += layer->n_values;
            }
        }
        keys->layers.push_back(std::move(entry));
        return TURBO_OK;
    });
}

int32_t turbo_keys_layers(const turbo_keys * keys, turbo_keys_layer * out, int32_t cap) {
    const int32_t n = (int32_t) keys->layers.size();
    for (int32_t i = 0; i < std::min(n, cap); i++) {
        out[i] = keys->layers[(size_t) i].info;
    }
    return n;
}

int32_t turbo_keys_values(const turbo_keys * keys, int32_t index, float * out, int32_t cap) {
    if (index < 0 || index >= (int32_t) keys->layers.size()) {
        return turbo_fail(TURBO_E_ARGUMENT, "there is no mean key %d of %d", index, (int32_t) keys->layers.size());
    }
    const std::vector<float> & values = keys->layers[(size_t) index].fit.mean;
    std::copy_n(values.begin(), std::min((int32_t) values.size(), cap), out);
    return (int32_t) values.size();
}

int32_t turbo_keys_moments(const turbo_keys * keys, int32_t index, float * out, int32_t cap) {
    if (index < 0 || index >= (int32_t) keys->layers.size()) {
        return turbo_fail(TURBO_E_ARGUMENT, "there is no mean key %d of %d", index, (int32_t) keys->layers.size());
    }
    turbo_moments moments = keys->layers[(size_t) index].fit.moments;
    std::vector<float> all;
    for (const std::vector<float> * part : parts_of(moments)) {
        all.insert(all.end(), part->begin(), part->end());
    }
    std::copy_n(all.begin(), std::min((int32_t) all.size(), cap), out);
    return (int32_t) all.size();
}

int32_t turbo_context_set_keys(turbo_context * ctx, const turbo_keys * keys) {
    return turbo_guard("set_keys", [&]() -> int32_t {
        const llama_hparams & hparams = ctx->model->model->hparams;
        std::vector<turbo_layer_fit> fits(hparams.n_layer_all);
        for (const layer_keys & entry : keys->layers) {
            const int32_t il = entry.info.layer;
            if (il >= (int32_t) hparams.n_layer_all || entry.fit.mean.size() != hparams.n_embd_k_gqa((uint32_t) il)) {
                return turbo_fail(TURBO_E_ARGUMENT, "the mean key of layer %d (%d values) does not belong to this model", il,
                                  entry.info.n_values);
            }
            fits[(size_t) il] = entry.fit;
        }
        const std::string problem = turbo_center_install(ctx->ctx, fits);
        return problem.empty() ? (int32_t) TURBO_OK : turbo_fail(TURBO_E_UNSUPPORTED, "keys are not centred: %s", problem.c_str());
    });
}

void turbo_keys_free(turbo_keys * keys) {
    delete keys;
}
