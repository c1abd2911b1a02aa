// From the mean key before RoPE to the centre of a context's cache, and its installation there.
#pragma once

#include "turbo/llama/key_stats.h"

#include <cstdint>
#include <string>
#include <vector>

struct llama_context;
struct llama_model;

// Why this model's keys cannot be centred ("" if they can): the softmax must not change when one vector is subtracted from
// every key, which attention soft-capping and attention sinks break, and a cache whose V is a view of K has no keys of its own.
std::string turbo_center_refusal(const llama_model * model);

// The mean over positions 0 .. n_ctx-1 of RoPE(p) b: the centre of the keys of a layer whose mean key before RoPE is b
// ([n_head_kv * head_dim]). Positions are sampled (at most 4,096, one a stratum), so the cost does not grow with n_ctx.
std::vector<float> turbo_center_of(const turbo_rope & rope, const std::vector<float> & b, int64_t head_dim, uint32_t n_ctx);

// How badly 3-bit keys would disturb a layer's attention, in nats: half the variance of the error of a logit, of the worst KV
// head, for keys less `center` and a relative quantisation error of `mse`.
double turbo_center_disturbance(const turbo_layer_keys & layer, const std::vector<float> & center, double mse);

// The mean key before RoPE, from the statistics.
std::vector<float> turbo_mean_key(const turbo_layer_keys & layer);

// Installs centres in a context's cache, before anything is stored in it. `mean_keys` [layer] = b, empty for layers left alone;
// `roped` [layer] = whether RoPE applies there. Float K types are left alone. Returns "" or the reason it could not be done.
std::string turbo_center_install(llama_context * ctx, const std::vector<std::vector<float>> & mean_keys,
                                 const std::vector<bool> & roped);
