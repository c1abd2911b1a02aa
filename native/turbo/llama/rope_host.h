// RoPE on the host, by ggml's own operator: the same numbers as the model's graph for every scaling (YaRN, LongRoPE, factors).
#pragma once

#include <cstdint>
#include <vector>

struct llama_context;

// The rotation of one layer of one context.
struct turbo_rope {
    bool used = false;          // false: this layer's keys carry no position
    int n_rot = 0;
    int type = 0;
    int n_ctx_orig = 0;
    float freq_base = 0, freq_scale = 0;
    float ext_factor = 0, attn_factor = 0, beta_fast = 0, beta_slow = 0;
    std::vector<float> factors; // frequency factors of the layer, empty if none
};

// The rotation that `ctx` applies to the keys of layer `il`.
turbo_rope turbo_rope_of(const llama_context * ctx, uint32_t il);

// Rotate row i of x (rows of n_head heads of head_dim values) to position pos[i]. Negative positions turn back.
void turbo_rope_apply(const turbo_rope & rope, std::vector<float> & x, int64_t head_dim, int64_t n_head,
                      const std::vector<int32_t> & pos);

// Rows of x (as above), which stand at positions first, first + step, ..., before RoPE: turned back, without its magnitude.
std::vector<float> turbo_rope_back(const turbo_rope & rope, std::vector<float> x, int64_t head_dim, int64_t n_head, int32_t first,
                                   int32_t step);

// The factor by which the rotation scales a vector (YaRN's attention factor); 1 without scaling.
float turbo_rope_magnitude(const turbo_rope & rope, int64_t head_dim);
