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

// The keys of one layer before RoPE, as far as a context's cache is fitted to them.
struct turbo_layer_fit {
    std::vector<float> mean; // [n_head_kv * head_dim]; empty: the layer's keys are stored as they are
    turbo_moments moments;   // empty: keys are centred, not balanced
    bool roped = false;
};

// What is subtracted from the keys of a layer at positions 0 .. n_ctx - 1, and what they and the queries are scaled by.
struct turbo_layer_frame {
    std::vector<float> center; // [n_head_kv * head_dim]
    std::vector<float> scale;  // a of kv_balance.h, same shape; empty without moments
    std::vector<double> gain;  // [n_head_kv]: what the scales leave of the error of a logit's variance; 1 without them
};

// The frame in which keys of such a mean and such moments are stored. Positions are sampled, denser at the beginning, so that
// the cost does not grow with n_ctx.
turbo_layer_frame turbo_frame_of(const turbo_rope & rope, const turbo_layer_fit & fit, int64_t head_dim, uint32_t n_ctx);

// How badly 3-bit keys would disturb a layer's attention, in nats: half the variance of the error of a logit, of the worst KV
// head, for keys stored in `frame` and a relative quantisation error of `mse`.
double turbo_center_disturbance(const turbo_layer_keys & layer, const turbo_layer_frame & frame, double mse);

// Keys as the model made them.
turbo_layer_frame turbo_no_frame(const turbo_layer_keys & layer);

// The mean key before RoPE, from the statistics.
std::vector<float> turbo_mean_key(const turbo_layer_keys & layer);

// Centres and balances the keys of a context's cache, before anything is stored in it. `fits` by model layer. Float K types are
// left alone. Returns "" or the reason it could not be done.
std::string turbo_center_install(llama_context * ctx, const std::vector<turbo_layer_fit> & fits);
