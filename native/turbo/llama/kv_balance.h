// Balanced keys: before keys are stored, channel i of a head is multiplied by a_i, and the query that reads them by 1 / a_i.
// Dot products do not change, but the error of a stored key, alike in all channels, then falls where queries are small.
#pragma once

#include "ggml.h"

#include <cstdint>

struct turbo_kv_centers;
class llama_kv_cache_context;

// The hook where a layer's attention is built: scales `q` and `k` together, so that they always match. `k` may be null (a
// layer that reads another layer's keys), and so may `v`. All are [head_dim, heads, tokens], behind RoPE; unchanged without
// scales. With them the graph first gets everything that leads to q, k and v, so that the products come right before the
// writes and the attention, where a backend can put them together.
void turbo_kv_balance(ggml_context * ctx, ggml_cgraph * gf, const llama_kv_cache_context * cache, int32_t il, ggml_tensor *& q,
                      ggml_tensor *& k, ggml_tensor * v);

// keys * a and keys / a of layer `il`, for keys of shape [head_dim, heads, cells] (K-shift). Unchanged without scales.
ggml_tensor * turbo_kv_scale(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys);
ggml_tensor * turbo_kv_unscale(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys);
