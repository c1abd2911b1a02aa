#include "turbo/llama/kv_centering.h"

#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "turbo/llama/kv_balance.h"
#include "turbo/llama/kv_caches.h"
#include "turbo/llama/kv_center.h"

#include <algorithm>
#include <cmath>
#include <numeric>

// ln 8: scales of badly measured channels stay within what f16 and 8-bit types take.
static constexpr double LARGEST_LOG_SCALE = 2.0794415416798357;

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

// Mean and mean square, over the positions of a context, of a vector that RoPE turns.
struct position_mean {
    std::vector<double> first, second;
};

// The position below which a share of the weight of a context lies. Every text has a beginning and few fill a context: the weight
// of a position is alike up to KNEE and falls with the root of the position behind.
static int32_t position_at(double share, uint32_t n_ctx) {
    constexpr double KNEE = 256;
    const double all = n_ctx <= KNEE ? n_ctx : KNEE * (2 * std::sqrt(n_ctx / KNEE) - 1);
    const double weight = share * all;
    const double root = (weight / KNEE + 1) / 2;
    return (int32_t) std::min<double>(weight <= KNEE ? weight : KNEE * root * root, n_ctx - 1);
}

static position_mean over_positions(const turbo_rope & rope, const std::vector<float> & x, int64_t head_dim, uint32_t n_ctx) {
    const uint32_t samples = rope.used ? std::min<uint32_t>(n_ctx, 1024) : 1;
    const size_t width = x.size();
    position_mean mean = { std::vector<double>(width, 0), std::vector<double>(width, 0) };
    const uint32_t step = 256; // rows rotated at a time, to bound the memory
    for (uint32_t first = 0; first < samples; first += step) {
        const uint32_t rows = std::min(step, samples - first);
        std::vector<int32_t> pos(rows);
        std::vector<float> turned;
        for (uint32_t r = 0; r < rows; ++r) {
            // One position a stratum, shifted by the golden ratio so that no frequency stays in step with the sampling.
            const double shift = std::fmod((first + r) * 0.6180339887498949, 1.0);
            pos[r] = position_at((first + r + shift) / samples, n_ctx);
            turned.insert(turned.end(), x.begin(), x.end());
        }
        turbo_rope_apply(rope, turned, head_dim, (int64_t) width / head_dim, pos);
        for (size_t i = 0; i < turned.size(); ++i) {
            mean.first[i % width] += turned[i] / double(samples);
            mean.second[i % width] += turned[i] * double(turned[i]) / samples;
        }
    }
    return mean;
}

// The error of a key, alike in all channels, grows with the length of the key as stored: of all scales those of the fourth root
// of the ratio of both second moments give dot products the least error.
static std::vector<float> balance(const std::vector<double> & key, const std::vector<double> & query, int64_t head_dim) {
    std::vector<float> a(key.size());
    for (size_t head = 0; head < a.size(); head += head_dim) {
        const auto floor_of = [&](const std::vector<double> & x) {
            return 1e-6 * std::accumulate(x.begin() + head, x.begin() + head + head_dim, 1e-30) / double(head_dim);
        };
        const double key_floor = floor_of(key), query_floor = floor_of(query);
        std::vector<double> logs(head_dim);
        for (int64_t c = 0; c < head_dim; ++c) {
            logs[c] = 0.25 * std::log((query[head + c] + query_floor) / (key[head + c] + key_floor));
        }
        const double mean = std::accumulate(logs.begin(), logs.end(), 0.0) / double(head_dim);
        for (int64_t c = 0; c < head_dim; ++c) {
            a[head + c] = (float) std::exp(std::clamp(logs[c] - mean, -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE));
        }
    }
    return a;
}

// For each head, |a k|^2 |q / a|^2 as a share of |k|^2 |q|^2.
static std::vector<double> gain_of(const std::vector<float> & a, const std::vector<double> & key, const std::vector<double> & query,
                                   int64_t head_dim) {
    std::vector<double> gain;
    for (size_t head = 0; head < a.size(); head += head_dim) {
        double k = 0, q = 0, scaled_k = 0, scaled_q = 0;
        for (size_t c = head; c < head + head_dim; ++c) {
            const double square = double(a[c]) * a[c];
            k += key[c];
            q += query[c];
            scaled_k += key[c] * square;
            scaled_q += query[c] / square;
        }
        gain.push_back(k * q > 0 ? scaled_k * scaled_q / (k * q) : 1.0);
    }
    return gain;
}

turbo_layer_frame turbo_no_frame(const turbo_layer_keys & layer) {
    return { std::vector<float>(layer.sum.size(), 0.0f), {}, std::vector<double>(layer.n_head_kv, 1.0) };
}

turbo_layer_frame turbo_frame_of(const turbo_rope & rope, const turbo_layer_fit & fit, int64_t head_dim, uint32_t n_ctx) {
    const position_mean mean = over_positions(rope, fit.mean, head_dim, n_ctx);
    turbo_layer_frame frame;
    frame.center.assign(mean.first.begin(), mean.first.end());
    frame.gain.assign(fit.mean.size() / head_dim, 1.0);
    if (fit.moments.empty()) {
        return frame;
    }
    std::vector<double> key(fit.mean.size()), query(fit.mean.size(), 0);
    for (size_t i = 0; i < key.size(); ++i) { // what the centre leaves of the mean
        key[i] = std::max(mean.second[i] - mean.first[i] * mean.first[i], 0.0);
    }
    for (int part = 0; part < 2; ++part) {
        const position_mean k = over_positions(rope, fit.moments.key[part], head_dim, n_ctx);
        const position_mean q = over_positions(rope, fit.moments.query[part], head_dim, n_ctx);
        for (size_t i = 0; i < key.size(); ++i) {
            key[i] += k.second[i];
            query[i] += q.second[i];
        }
    }
    frame.scale = balance(key, query, head_dim);
    frame.gain = gain_of(frame.scale, key, query, head_dim);
    return frame;
}

std::vector<float> turbo_mean_key(const turbo_layer_keys & layer) {
    std::vector<float> mean(layer.sum_before.size());
    std::transform(layer.sum_before.begin(), layer.sum_before.end(), mean.begin(), [&](double s) { return float(s / layer.n); });
    return mean;
}

double turbo_center_disturbance(const turbo_layer_keys & layer, const turbo_layer_frame & frame, double mse) {
    double worst = 0;
    for (int64_t h = 0; h < layer.n_head_kv && layer.n_query > 0; ++h) {
        double left = layer.square[h] / layer.n; // E|k - c|^2 = E|k|^2 - 2 c.E k + |c|^2
        for (int64_t i = h * layer.head_dim; i < (h + 1) * layer.head_dim; ++i) {
            left += double(frame.center[i]) * (frame.center[i] - 2 * layer.sum[i] / layer.n);
        }
        const double query = layer.query[h] / layer.n_query;
        const double scale = layer.attention_scale;
        worst = std::max(worst, 0.5 * scale * scale * query * std::max(left, 0.0) * frame.gain[h] * mse / layer.head_dim);
    }
    return worst;
}

// Named as a friend in llama_kv_cache and its context: places the vectors and finds them again.
struct turbo_kv_centering {
    static bool install(llama_kv_cache * cache, const llama_context * ctx, const std::vector<turbo_layer_fit> & fits) {
        auto centers = std::make_shared<turbo_kv_centers>();
        for (const auto & layer : cache->layers) {
            if (layer.il >= fits.size() || fits[layer.il].mean.empty()) {
                continue;
            }
            const turbo_layer_fit & fit = fits[layer.il];
            const int64_t head_dim = cache->hparams.n_embd_head_k(layer.il);
            const turbo_rope rope = fit.roped ? turbo_rope_of(ctx, layer.il) : turbo_rope();
            turbo_layer_frame frame = turbo_frame_of(rope, fit, head_dim, ctx->get_cparams().n_ctx_seq);
            ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(layer.k->buffer);
            // The graph of this architecture builds its attention itself, without the hook that scales queries.
            if (ctx->get_model().arch == LLM_ARCH_QWEN4EXP) {
                frame.scale.clear();
            }
            if (!frame.scale.empty()) {
                // one vector for every query head: the product can then take the place of the queries
                const size_t group = cache->hparams.n_head(layer.il) / cache->hparams.n_head_kv(layer.il);
                std::vector<float> inverse;
                for (size_t head = 0; head < frame.scale.size(); head += head_dim) {
                    for (size_t i = 0; i < group * head_dim; ++i) {
                        inverse.push_back(1.0f / frame.scale[head + i % head_dim]);
                    }
                }
                if (!centers->add(turbo_kv_centers::key_scale, layer.il, frame.scale.data(), (int64_t) frame.scale.size(), buft)
                    || !centers->add(turbo_kv_centers::query_scale, layer.il, inverse.data(), (int64_t) inverse.size(), buft)) {
                    return false;
                }
                centers->owners[layer.k] = layer.il;
                for (size_t i = 0; i < frame.center.size(); ++i) {
                    frame.center[i] *= frame.scale[i];
                }
            }
            if (cache->attn_rot_k) {
                rotate_as_upstream(frame.center, rotation_width(cache->n_embd_head_k_all));
            }
            if (!centers->add(turbo_kv_centers::center, layer.il, frame.center.data(), (int64_t) frame.center.size(), buft)) {
                return false;
            }
        }
        cache->turbo_centers = centers->by_layer[turbo_kv_centers::center].empty() ? nullptr : centers;
        return true;
    }

    static const turbo_kv_centers * centers_of(const llama_kv_cache_context * context) { return context->kv->turbo_centers.get(); }

    // The keys that layer `il` reads.
    static const ggml_tensor * keys_of(const llama_kv_cache_context * context, int32_t il) {
        return context->kv->layers[context->kv->map_layer_ids.at(il)].k;
    }

private:
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
