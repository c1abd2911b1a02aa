// Statistics of a model's keys, gathered while a text runs through it: what centred keys are made from.
#pragma once

#include "turbo/llama/key_moments.h"
#include "turbo/llama/rope_host.h"

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

struct ggml_tensor;
struct llama_context;

// Of one KV layer, over n rows (tokens). Vectors are [n_head_kv * head_dim] or [n_head_kv].
struct turbo_layer_keys {
    int64_t head_dim = 0, n_head_kv = 0, n = 0;
    bool roped = false;              // a RoPE stands between the projection and the cache
    std::vector<double> sum;         // keys as they enter the cache
    std::vector<double> sum_before;  // the same turned back to position 0: keys before RoPE
    std::vector<double> square;      // |k|^2 by head
    std::vector<double> query;       // |q|^2 by KV head, mean over the query heads of its group, summed over rows
    int64_t n_query = 0;             // rows in `query`
    double attention_scale = 0;      // factor on q.k in the softmax
    turbo_moments moments;           // of the first layer that reads these keys
};

// Watches a context's graph through the scheduler's callback. The context must decode one text, from position 0, as a single
// batch of one sequence, with float KV types.
struct turbo_key_stats {
    std::map<uint32_t, turbo_layer_keys> layers;
    const llama_context * ctx = nullptr;    // set once the context exists; nothing is gathered before
    int n_threads = 1;                      // for the products of turbo_moments_of
    std::function<bool(int64_t)> layer_done; // called with the number of layers seen; false stops
    bool stopped = false;                   // layer_done said so: what was gathered is incomplete

    // ggml_backend_sched_eval_callback; user_data is the turbo_key_stats.
    static bool observe(ggml_tensor * t, bool ask, void * user_data);

private:
    void keys_written(const ggml_tensor * write);
    void queries_used(const ggml_tensor * attention);
    std::map<uint32_t, turbo_rope> ropes;
    std::map<uint32_t, std::vector<float>> keys; // [n][n_head_kv][head_dim], of layers whose attention is still to come
    int64_t seen = 0;
};
