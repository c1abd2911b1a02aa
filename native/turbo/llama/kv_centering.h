// From the mean key before RoPE to the centre of a context's cache, and its installation there.
#pragma once

#include "turbo/llama/kv_frame.h"

#include <string>
#include <vector>

struct llama_context;
struct llama_model;

// Why this model's keys cannot be centred ("" if they can): the softmax must not change when one vector is subtracted from
// every key, which attention soft-capping and attention sinks break, and a cache whose V is a view of K has no keys of its own.
std::string turbo_center_refusal(const llama_model * model);

// Centres and balances the keys of a context's cache, before anything is stored in it. `fits` by model layer. Float K types are
// left alone. Returns "" or the reason it could not be done.
std::string turbo_center_install(llama_context * ctx, const std::vector<turbo_layer_fit> & fits);
