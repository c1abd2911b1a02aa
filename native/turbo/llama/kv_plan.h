// Per-layer choices for the next KV cache of this thread. llama_context_params has one K type for all layers;
// a plan lets the shim give single layers another one (a layer whose keys stay badly conditioned gets q8_0).
#pragma once

#include "ggml.h"

#include <cstdint>
#include <vector>

struct turbo_kv_plan {
    std::vector<ggml_type> type_k; // by model layer; GGML_TYPE_COUNT: the context's own type
};

// Makes `plan` the one in force for this thread while the object lives (around llama_init_from_model).
class turbo_kv_plan_scope {
public:
    explicit turbo_kv_plan_scope(const turbo_kv_plan * plan);
    ~turbo_kv_plan_scope();
    turbo_kv_plan_scope(const turbo_kv_plan_scope &) = delete;
    turbo_kv_plan_scope & operator=(const turbo_kv_plan_scope &) = delete;

private:
    const turbo_kv_plan * previous;
};

// The K type of layer `il`: the plan's, else `type_k`.
ggml_type turbo_kv_layer_type_k(uint32_t il, ggml_type type_k);
