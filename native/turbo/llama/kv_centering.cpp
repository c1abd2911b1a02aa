#include "turbo/llama/kv_centering.h"

#include "llama-context.h"
#include "llama-kv-cache.h"
#include "llama-model.h"
#include "turbo/llama/kv_caches.h"
#include "turbo/llama/kv_center.h"

#include <algorithm>
#include <cmath>

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

std::vector<float> turbo_center_of(const turbo_rope & rope, const std::vector<float> & b, int64_t head_dim, uint32_t n_ctx) {
    if (!rope.used) {
        return b;
    }
    const uint32_t samples = std::min<uint32_t>(n_ctx, 4096);
    const int64_t width = (int64_t) b.size();
    std::vector<double> sum(width, 0);
    const uint32_t step = 256; // rows rotated at a time, to bound the memory
    for (uint32_t first = 0; first < samples; first += step) {
        const uint32_t rows = std::min(step, samples - first);
        std::vector<int32_t> pos(rows);
        std::vector<float> x(rows * width);
        for (uint32_t r = 0; r < rows; ++r) {
            // One position a stratum, shifted by the golden ratio so that no frequency stays in step with the sampling.
            const double shift = std::fmod((first + r) * 0.6180339887498949, 1.0);
            pos[r] = (int32_t) ((first + r + shift) * n_ctx / samples);
            std::copy(b.begin(), b.end(), x.begin() + r * width);
        }
        turbo_rope_apply(rope, x, head_dim, width / head_dim, pos);
        for (size_t i = 0; i < x.size(); ++i) {
            sum[i % width] += x[i];
        }
    }
    std::vector<float> center(width);
    std::transform(sum.begin(), sum.end(), center.begin(), [&](double s) { return float(s / samples); });
    return center;
}

std::vector<float> turbo_mean_key(const turbo_layer_keys & layer) {
    std::vector<float> mean(layer.sum_before.size());
    std::transform(layer.sum_before.begin(), layer.sum_before.end(), mean.begin(), [&](double s) { return float(s / layer.n); });
    return mean;
}

double turbo_center_disturbance(const turbo_layer_keys & layer, const std::vector<float> & center, double mse) {
    double worst = 0;
    for (int64_t h = 0; h < layer.n_head_kv && layer.n_query > 0; ++h) {
        double left = layer.square[h] / layer.n; // E|k - c|^2 = E|k|^2 - 2 c.E k + |c|^2
        for (int64_t i = h * layer.head_dim; i < (h + 1) * layer.head_dim; ++i) {
            left += double(center[i]) * (center[i] - 2 * layer.sum[i] / layer.n);
        }
        const double query = layer.query[h] / layer.n_query;
        const double scale = layer.attention_scale;
        worst = std::max(worst, 0.5 * scale * scale * query * std::max(left, 0.0) * mse / layer.head_dim);
    }
    return worst;
}

// Named as a friend in llama_kv_cache: places the centres.
struct turbo_kv_centering {
    static bool install(llama_kv_cache * cache, const llama_context * ctx, const std::vector<std::vector<float>> & mean_keys,
                        const std::vector<bool> & roped) {
        auto centers = std::make_shared<turbo_kv_centers>();
        for (const auto & layer : cache->layers) {
            if (layer.il >= mean_keys.size() || mean_keys[layer.il].empty()) {
                continue;
            }
            const int64_t head_dim = cache->hparams.n_embd_head_k(layer.il);
            const turbo_rope rope = roped[layer.il] ? turbo_rope_of(ctx, layer.il) : turbo_rope();
            std::vector<float> c = turbo_center_of(rope, mean_keys[layer.il], head_dim, ctx->get_cparams().n_ctx_seq);
            if (cache->attn_rot_k) {
                rotate_as_upstream(c, rotation_width(cache->n_embd_head_k_all));
            }
            if (!centers->add(layer.il, c.data(), (int64_t) c.size(), ggml_backend_buffer_get_type(layer.k->buffer))) {
                return false;
            }
        }
        cache->turbo_centers = centers->by_layer.empty() ? nullptr : centers;
        return true;
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

std::string turbo_center_install(llama_context * ctx, const std::vector<std::vector<float>> & mean_keys,
                                 const std::vector<bool> & roped) {
    const std::string refusal = turbo_center_refusal(&ctx->get_model());
    if (!refusal.empty()) {
        return refusal;
    }
    const std::vector<turbo_kv_cache_ref> caches = turbo_kv_caches(ctx->get_memory());
    if (caches.empty()) {
        return "this model's memory is of a kind whose keys are not centred";
    }
    for (const turbo_kv_cache_ref & ref : caches) {
        if (!turbo_kv_centering::install(ref.cache, ctx, mean_keys, roped)) {
            return "no memory for the centres";
        }
    }
    return "";
}
