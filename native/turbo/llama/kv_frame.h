// The frame that the keys of a layer are stored in: from their mean and their moments before RoPE to centres and scales.
#pragma once

#include "turbo/llama/key_stats.h"

#include <cstdint>
#include <vector>

// The keys of one layer before RoPE, as far as a context's cache is fitted to them.
struct turbo_layer_fit {
    std::vector<float> mean; // [n_head_kv * head_dim]; empty: the layer's keys are stored as they are
    turbo_moments moments;   // empty: keys are centred, not balanced
    bool roped = false;
};

// What is subtracted from the keys of a layer at positions 0 .. n_ctx - 1, and what they and the queries are scaled by.
struct turbo_layer_frame {
    std::vector<float> center; // [n_head_kv * head_dim]; where there are runs, theirs one after the other before it
    std::vector<float> scale;  // a of kv_balance.h, same shape; empty without moments
    std::vector<double> gain;  // [n_head_kv]: what the scales leave of the error of a logit's variance; 1 without them
};

// Runs of positions with a centre each; none: one centre for all.
struct turbo_frame_runs {
    uint32_t n = 0, positions = 0; // runs, and positions of a run
};

// The frame in which keys of such a mean and such moments are stored. Positions are sampled, denser at the beginning, so that
// the cost does not grow with n_ctx, but for the centres of runs, one rotation each.
turbo_layer_frame turbo_frame_of(const turbo_rope & rope, const turbo_layer_fit & fit, int64_t head_dim, uint32_t n_ctx,
                                 const turbo_frame_runs & runs = {});

// How badly 3-bit keys would disturb a layer's attention, in nats: half the variance of the error of a logit, of the worst KV
// head, for keys stored in `frame`, of one centre, and a relative quantisation error of `mse`.
double turbo_center_disturbance(const turbo_layer_keys & layer, const turbo_layer_frame & frame, double mse);

// Keys as the model made them.
turbo_layer_frame turbo_no_frame(const turbo_layer_keys & layer);

// The mean key before RoPE, from the statistics.
std::vector<float> turbo_mean_key(const turbo_layer_keys & layer);
