// Centred keys: one vector c per KV layer is subtracted from every key before it is stored. Softmax does not change
// when the same vector is taken from all keys a query sees, so it is never added back on reading.
#pragma once

#include "ggml.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdint>
#include <map>
#include <vector>

// The centres of one cache: a float32 tensor [n_embd_k_gqa] per layer, in the memory of that layer's keys. Where
// upstream rotates the keys of a type (q8_0, q4_0), the tensor holds the rotated centre.
struct turbo_kv_centers {
    std::map<uint32_t, ggml_tensor *> by_layer;
    std::vector<ggml_context_ptr> contexts;
    std::vector<ggml_backend_buffer_ptr> buffers;

    // Adds a centre of `n` floats for layer `il` in memory of kind `buft`; false when memory is short.
    bool add(uint32_t il, const float * values, int64_t n, ggml_backend_buffer_type_t buft);
};

// keys - c. `keys` is [n_embd_k_gqa, tokens] or [head_dim, heads, tokens]; returned unchanged when there is no centre.
ggml_tensor * turbo_kv_center(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys);

// keys + c, same shapes: the stored keys as the model made them (K-shift rotates those).
ggml_tensor * turbo_kv_uncenter(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys);
