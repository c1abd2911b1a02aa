// Second moments of a layer's keys and queries, weighted by how much an error of a key disturbs the attention of a query.
#pragma once

#include "turbo/llama/rope_host.h"

#include <cstdint>
#include <vector>

// Before RoPE, of one layer; all vectors are [n_head_kv * head_dim]. The second moment of the two channels of a RoPE pair is
// x[0] x[0]^T + x[1] x[1]^T, of a channel without RoPE x[0]^2 + x[1]^2: RoPE turns such vectors as it turns keys. Scaled to
// any unit, one a head. Empty: unknown.
struct turbo_moments {
    std::vector<float> key[2];   // of keys less their mean
    std::vector<float> query[2]; // of the queries of the KV head's group
    bool empty() const { return key[0].empty(); }
};

// What one layer's attention read over one text of n_key tokens at positions 0 .. n_key - 1. Every query_step-th token's queries
// stand for all.
struct turbo_attention_record {
    static constexpr int32_t query_step = 3, first_query = query_step - 1;
    int64_t n_key = 0, n_query = 0, head_dim = 0, n_head_kv = 0, n_head = 0;
    std::vector<float> keys;    // [n_key][n_head_kv][head_dim] behind RoPE
    std::vector<float> queries; // [n_query][n_head][head_dim] behind RoPE
    std::vector<float> mask;    // [n_query][n_key]: 0, -inf or a bias
    float scale = 1, max_bias = 0;
};

// A small error e of key j moves the logit of query i by scale q_i.e, and its effect on the softmax grows with p (1 - p), p the
// weight of the key: keys and queries are weighted accordingly, and by the size of each other. `n_threads` for the products.
turbo_moments turbo_moments_of(const turbo_attention_record & record, const turbo_rope & rope, int n_threads);
