#include "turbo/llama/key_moments.h"

#include "llama.h"

#include "ggml-cpp.h"
#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

// The weights depend on the scales they lead to; a few rounds settle them.
static constexpr int ROUNDS = 3;

// Softmax weights of all heads, [n_head][n_query][n_key].
static std::vector<float> attention_weights(const turbo_attention_record & r, int n_threads) {
    const size_t floats = r.keys.size() + r.queries.size() + r.mask.size() + (size_t) (r.n_query * r.n_key * r.n_head);
    const ggml_init_params params = { floats * sizeof(float) + 32 * ggml_tensor_overhead() + ggml_graph_overhead()
                                          + ((size_t) 8 << 20), nullptr, false };
    ggml_context_ptr ctx(ggml_init(params));
    ggml_tensor * keys = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, r.head_dim, r.n_head_kv, r.n_key);
    ggml_tensor * queries = ggml_new_tensor_3d(ctx.get(), GGML_TYPE_F32, r.head_dim, r.n_head, r.n_query);
    ggml_tensor * mask = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, r.n_key, r.n_query);
    memcpy(keys->data, r.keys.data(), r.keys.size() * sizeof(float));
    memcpy(queries->data, r.queries.data(), r.queries.size() * sizeof(float));
    memcpy(mask->data, r.mask.data(), r.mask.size() * sizeof(float));
    ggml_tensor * by_head[2] = { ggml_permute(ctx.get(), keys, 0, 2, 1, 3), ggml_permute(ctx.get(), queries, 0, 2, 1, 3) };
    ggml_tensor * logits = ggml_mul_mat(ctx.get(), by_head[0], by_head[1]);
    ggml_tensor * weights = ggml_soft_max_ext_inplace(ctx.get(), logits, mask, r.scale, r.max_bias);
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, weights);
    ggml_graph_compute_with_ctx(ctx.get(), graph, n_threads);
    const float * first = (const float *) weights->data;
    return std::vector<float>(first, first + ggml_nelements(weights));
}

namespace {

// One KV head: its keys less their mean, the queries of its group, and the weight of each pair.
struct head_problem {
    int64_t n_key, n_row, d;    // n_row = queries of all heads of the group
    std::vector<float> keys;    // [n_key][d]
    std::vector<float> queries; // [n_row][d], head by head
    const float * weights;      // [n_row][n_key]
    std::vector<float> key_weight, query_weight;

    head_problem(const turbo_attention_record & r, const float * all_weights, int64_t head)
        : n_key(r.n_key), n_row(r.n_head / r.n_head_kv * r.n_query), d(r.head_dim), keys(n_key * d), queries(n_row * d),
          weights(all_weights + head * n_row * n_key), key_weight(n_key), query_weight(n_row) {
        std::vector<double> mean(d, 0);
        for (int64_t j = 0; j < n_key; ++j) {
            const float * key = r.keys.data() + (j * r.n_head_kv + head) * d;
            for (int64_t c = 0; c < d; ++c) {
                keys[j * d + c] = key[c];
                mean[c] += key[c] / double(n_key);
            }
        }
        for (int64_t i = 0; i < n_key * d; ++i) {
            keys[i] -= float(mean[i % d]);
        }
        const int64_t first_head = head * (r.n_head / r.n_head_kv);
        for (int64_t row = 0; row < n_row; ++row) {
            const int64_t query_head = first_head + row / r.n_query;
            const float * query = r.queries.data() + (row % r.n_query * r.n_head + query_head) * d;
            std::copy(query, query + d, queries.begin() + row * d);
        }
    }

    // |row * factor|^2 of each row.
    std::vector<float> norms(const std::vector<float> & rows, const std::vector<float> & factor) const {
        std::vector<float> out(rows.size() / d, 0);
        for (size_t i = 0; i < rows.size(); ++i) {
            const float x = rows[i] * factor[i % d];
            out[i / d] += x * x;
        }
        return out;
    }

    void weigh(const std::vector<float> & a) {
        std::vector<float> inverse(d);
        std::transform(a.begin(), a.end(), inverse.begin(), [](float x) { return 1 / x; });
        const std::vector<float> key_norm = norms(keys, a), query_norm = norms(queries, inverse);
        std::fill(key_weight.begin(), key_weight.end(), 0.0f);
        for (int64_t row = 0; row < n_row; ++row) {
            const float * p = weights + row * n_key;
            float sum = 0;
            for (int64_t j = 0; j < n_key; ++j) {
                const float w = p[j] * (1 - p[j]);
                key_weight[j] += w * query_norm[row];
                sum += w * key_norm[j];
            }
            query_weight[row] = sum;
        }
    }

    // Weighted mean of the squares of each channel.
    std::vector<double> squares(const std::vector<float> & rows, const std::vector<float> & weight) const {
        std::vector<double> out(d, 0);
        const double total = std::accumulate(weight.begin(), weight.end(), 1e-30);
        for (size_t i = 0; i < rows.size(); ++i) {
            out[i % d] += weight[i / d] * double(rows[i]) * rows[i] / total;
        }
        return out;
    }

    void settle() {
        std::vector<float> a(d, 1.0f);
        for (int round = 0; round < ROUNDS; ++round) {
            weigh(a);
            const std::vector<double> k = squares(keys, key_weight), q = squares(queries, query_weight);
            const double floor = 1e-6 * std::accumulate(k.begin(), k.end(), 1e-30) / d;
            const double q_floor = 1e-6 * std::accumulate(q.begin(), q.end(), 1e-30) / d;
            for (int64_t c = 0; c < d; ++c) {
                a[c] = (float) std::pow((q[c] + q_floor) / (k[c] + floor), 0.25);
            }
        }
    }
};

// The channel that RoPE turns together with channel c: c itself if none.
int64_t partner_of(const turbo_rope & rope, int64_t c) {
    if (!rope.used || c >= rope.n_rot) {
        return c;
    }
    const int64_t half = rope.n_rot / 2;
    return rope.type == LLAMA_ROPE_TYPE_NORM ? c ^ 1 : c < half ? c + half : c - half;
}

// Weighted second moments of rows [m][d] as the two vectors of turbo_moments, into out[0][at ..] and out[1][at ..].
void factor(const std::vector<float> & rows, const std::vector<float> & weight, int64_t d, const turbo_rope & rope,
            std::vector<float> (&out)[2], int64_t at) {
    const double total = std::accumulate(weight.begin(), weight.end(), 1e-30);
    for (int64_t c = 0; c < d; ++c) {
        const int64_t other = partner_of(rope, c);
        if (other < c) {
            continue;
        }
        double cc = 0, co = 0, oo = 0;
        for (size_t row = 0; row < weight.size(); ++row) {
            const double x = rows[row * d + c], y = rows[row * d + other], w = weight[row] / total;
            cc += w * x * x;
            co += w * x * y;
            oo += w * y * y;
        }
        const double first = std::sqrt(cc), cross = other != c && first > 0 ? co / first : 0;
        out[0][at + c] = float(first);
        if (other != c) {
            out[0][at + other] = float(cross);
            out[1][at + other] = float(std::sqrt(std::max(oo - cross * cross, 0.0)));
        }
    }
}

}  // namespace

turbo_moments turbo_moments_of(const turbo_attention_record & r, const turbo_rope & rope, int n_threads) {
    const std::vector<float> weights = attention_weights(r, n_threads);
    turbo_attention_record before = r;
    before.keys = turbo_rope_back(rope, r.keys, r.head_dim, r.n_head_kv, 0, 1);
    before.queries = turbo_rope_back(rope, r.queries, r.head_dim, r.n_head, r.first_query, r.query_step);
    turbo_moments moments;
    for (int part = 0; part < 2; ++part) {
        moments.key[part].assign(r.n_head_kv * r.head_dim, 0.0f);
        moments.query[part].assign(r.n_head_kv * r.head_dim, 0.0f);
    }
    for (int64_t head = 0; head < r.n_head_kv; ++head) {
        head_problem problem(r, weights.data(), head);
        problem.settle();
        const head_problem turned(before, weights.data(), head);
        factor(turned.keys, problem.key_weight, r.head_dim, rope, moments.key, head * r.head_dim);
        factor(turned.queries, problem.query_weight, r.head_dim, rope, moments.query, head * r.head_dim);
    }
    return moments;
}
