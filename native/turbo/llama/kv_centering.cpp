#include "turbo/llama/kv_centering.h"

#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "turbo/llama/kv_balance.h"
#include "turbo/llama/kv_caches.h"
#include "turbo/llama/kv_center.h"
#include "turbo/llama/kv_runs.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string_view>

static constexpr float LARGEST_F16 = 65504.0f;

// TURBO_CENTER_RUNS=0: one centre a layer everywhere, also where runs would do.
static bool runs_are_wanted() {
    const char * value = std::getenv("TURBO_CENTER_RUNS");
    return value == nullptr || std::string_view(value) != "0";
}

std::string turbo_center_refusal(const llama_model * model) {
    const llama_hparams & hparams = model->hparams;
    if (hparams.attn_soft_cap) {
        return "attention soft-capping bends the logits, so a vector common to all keys does not cancel";
    }
    if (hparams.is_mla() || model->arch == LLM_ARCH_DEEPSEEK4) {
        return "the cache of this model (MLA) has no keys of its own";
    }
    for (const auto & layer : model->layers) {
        if (layer.attn_sinks != nullptr) {
            return "attention sinks stand beside the keys in the softmax, so a vector common to all keys does not cancel";
        }
    }
    return "";
}

// Named as a friend in llama_kv_cache and its context: places the vectors and finds them again.
struct turbo_kv_centering {
    static bool install(llama_kv_cache * cache, const llama_context * ctx, const std::vector<turbo_layer_fit> & fits) {
        auto centers = std::make_shared<turbo_kv_centers>();
        centers->only_measured = cache->hparams.no_alloc;
        for (const auto & layer : cache->layers) {
            if (layer.il < fits.size() && !fits[layer.il].mean.empty()
                && !install(cache, ctx, layer.il, layer.k, fits[layer.il], *centers)) {
                return false;
            }
        }
        cache->turbo_centers = centers->by_layer[turbo_kv_centers::center].empty() ? nullptr : centers;
        return true;
    }

    static const turbo_kv_centers * centers_of(const llama_kv_cache_context * context) {
        return context->kv->turbo_centers.get();
    }

    // The keys that layer `il` reads.
    static const ggml_tensor * keys_of(const llama_kv_cache_context * context, int32_t il) {
        return context->kv->layers[context->kv->map_layer_ids.at(il)].k;
    }

private:
    static bool install(const llama_kv_cache * cache, const llama_context * ctx, uint32_t il, const ggml_tensor * k,
                        const turbo_layer_fit & fit, turbo_kv_centers & centers) {
        const int64_t head_dim = cache->hparams.n_embd_head_k(il), width = (int64_t) fit.mean.size();
        const size_t group = cache->hparams.n_head(il) / cache->hparams.n_head_kv(il);
        // The graph of this architecture builds its attention itself, without the hook that scales queries.
        const bool scaled = !fit.moments.empty() && ctx->get_model().arch != LLM_ARCH_QWEN4EXP;
        turbo_frame_runs runs = runs_of(cache, ctx, il, k, fit);
        turbo_layer_frame frame;
        std::vector<float> inverse;
        if (!centers.only_measured) {
            frame = frame_of(cache, ctx, il, fit, scaled, runs);
            for (size_t head = 0; head < frame.scale.size(); head += head_dim) {
                // one vector for every query head: the product can then take the place of the queries
                for (size_t i = 0; i < group * head_dim; ++i) {
                    inverse.push_back(1.0f / frame.scale[head + i % head_dim]);
                }
            }
        }
        ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(k->buffer);
        if (scaled) {
            if (!centers.add(turbo_kv_centers::key_scale, il, frame.scale.data(), width, buft)
                || !centers.add(turbo_kv_centers::query_scale, il, inverse.data(), (int64_t) group * width, buft)) {
                return false;
            }
            centers.owners[k] = il;
        }
        return runs.n > 0 ? centers.add_runs(il, k, frame.center, runs.positions)
                          : centers.add(turbo_kv_centers::center, il, frame.center.data(), width, buft);
    }

    // The frame in the terms of what is stored. Takes `runs` back where their centres are no numbers of f16.
    static turbo_layer_frame frame_of(const llama_kv_cache * cache, const llama_context * ctx, uint32_t il,
                                      const turbo_layer_fit & fit, bool scaled, turbo_frame_runs & runs) {
        const turbo_rope rope = fit.roped ? turbo_rope_of(ctx, il) : turbo_rope();
        turbo_layer_frame frame =
            turbo_frame_of(rope, fit, cache->hparams.n_embd_head_k(il), ctx->get_cparams().n_ctx_seq, runs);
        if (!scaled) {
            frame.scale.clear();
        }
        for (size_t i = 0; i < frame.center.size() && scaled; ++i) {
            frame.center[i] *= frame.scale[i % frame.scale.size()];
        }
        if (cache->attn_rot_k) {
            rotate_as_upstream(frame.center, rotation_width(cache->n_embd_head_k_all));
        }
        const auto fits_f16 = [](float x) { return std::abs(x) < LARGEST_F16; };
        if (runs.n > 0 && !std::all_of(frame.center.begin(), frame.center.end(), fits_f16)) {
            runs = {};
            return frame_of(cache, ctx, il, fit, scaled, runs);
        }
        return frame;
    }

    // Runs of the keys of a layer; none where one centre does as well, is all that the readers bear, or where a cell says nothing
    // about the position it holds: in a cache that several sequences share, or that is a window over them.
    static turbo_frame_runs runs_of(const llama_kv_cache * cache, const llama_context * ctx, uint32_t il, const ggml_tensor * k,
                                    const turbo_layer_fit & fit) {
        const llama_hparams & hparams = cache->hparams;
        const uint32_t n_cells = (uint32_t) k->ne[1], length = turbo_run_length(n_cells);
        const bool turned = fit.roped && hparams.rope_type != LLAMA_ROPE_TYPE_NONE && hparams.has_rope(il);
        const bool placed = cache->n_stream == cache->n_seq_max && n_cells >= ctx->get_cparams().n_ctx_seq;
        // MiniMax-M3 builds its attention itself, without the hook that hands it the centres.
        if (!runs_are_wanted() || !turned || !placed || n_cells <= length
            || ctx->get_model().arch == LLM_ARCH_MINIMAX_M3 || !turbo_runs_are_read(ctx, k)) {
            return {};
        }
        return { (n_cells + length - 1) / length, length };
    }

    // The largest power of two, at least 64, that divides the head: what upstream rotates keys by.
    static int64_t rotation_width(int64_t head_dim) {
        int64_t width = 64;
        while (head_dim % (width * 2) == 0) {
            width *= 2;
        }
        return width;
    }

    // Orthonormal Walsh-Hadamard transform of each run of `width` values.
    static void rotate_as_upstream(std::vector<float> & x, int64_t width) {
        for (size_t start = 0; start + width <= x.size(); start += width) {
            float * v = x.data() + start;
            for (int64_t half = 1; half < width; half *= 2) {
                for (int64_t i = 0; i < width; i += 2 * half) {
                    for (int64_t j = i; j < i + half; ++j) {
                        const float a = v[j], b = v[j + half];
                        v[j] = a + b;
                        v[j + half] = a - b;
                    }
                }
            }
            for (int64_t i = 0; i < width; ++i) {
                v[i] /= std::sqrt((float) width);
            }
        }
    }
};

// Queries [head_dim, heads, tokens] times a vector of each head. A layer that reads another one's keys may have more or
// fewer heads for each of the `n_head_kv`, whose vectors are alike.
static ggml_tensor * scale_queries(ggml_context * ctx, ggml_tensor * q, ggml_tensor * factors, int64_t n_head_kv) {
    const int64_t head_dim = q->ne[0], n_head = ggml_nelements(factors) / head_dim;
    if (n_head == q->ne[1]) {
        return ggml_mul(ctx, q, ggml_reshape_2d(ctx, factors, head_dim, n_head));
    }
    const int64_t group = q->ne[1] / n_head_kv;
    ggml_tensor * groups = ggml_view_4d(ctx, q, head_dim, group, n_head_kv, q->ne[2], q->nb[1], q->nb[1] * group, q->nb[2], 0);
    const size_t row = head_dim * sizeof(float);
    ggml_tensor * firsts = ggml_view_3d(ctx, factors, head_dim, 1, n_head_kv, row, row * (n_head / n_head_kv), 0);
    return ggml_reshape_3d(ctx, ggml_mul(ctx, groups, firsts), head_dim, q->ne[1], q->ne[2]);
}

void turbo_kv_balance(ggml_context * ctx, ggml_cgraph * gf, const llama_kv_cache_context * cache, int32_t il, ggml_tensor *& q,
                      ggml_tensor *& k, ggml_tensor * v) {
    const turbo_kv_centers * centers = turbo_kv_centering::centers_of(cache);
    if (centers == nullptr) {
        return;
    }
    const auto owner = centers->owners.find(turbo_kv_centering::keys_of(cache, il));
    if (owner == centers->owners.end()) {
        return;
    }
    for (ggml_tensor * x : { q, v, k }) {
        if (x != nullptr) {
            ggml_build_forward_expand(gf, x);
        }
    }
    const int64_t n_head_kv =
        ggml_nelements(centers->by_layer[turbo_kv_centers::key_scale].at(owner->second)) / q->ne[0];
    q = scale_queries(ctx, q, centers->by_layer[turbo_kv_centers::query_scale].at(owner->second), n_head_kv);
    if (k != nullptr) {
        k = turbo_kv_scale(ctx, centers, owner->second, k);
    }
}

std::string turbo_center_install(llama_context * ctx, const std::vector<turbo_layer_fit> & fits) {
    const std::string refusal = turbo_center_refusal(&ctx->get_model());
    if (!refusal.empty()) {
        return refusal;
    }
    const std::vector<turbo_kv_cache_ref> caches = turbo_kv_caches(ctx->get_memory());
    if (caches.empty()) {
        return "this model's memory is of a kind whose keys are not centred";
    }
    for (const turbo_kv_cache_ref & ref : caches) {
        if (!turbo_kv_centering::install(ref.cache, ctx, fits)) {
            return "no memory for the centres";
        }
    }
    return "";
}
