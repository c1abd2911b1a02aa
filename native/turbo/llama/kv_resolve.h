// From the KV types a caller asked for to those the cache is made with.
#pragma once

#include "ggml.h"

#include <cstddef>

struct llama_model;
struct llama_context_params;

// Choose the block size of the turbo types for this model: 128 values if every K and V head dimension of the layers
// that own a KV cache is a multiple of 128, else 64 if all are multiples of 64. Either sibling may be given; both come
// back with the same block size. Other types pass unchanged. Returns false with the reason in `why` (cut to `size` bytes)
// when a turbo type cannot hold this model's heads.
bool turbo_kv_resolve(const llama_model * model, ggml_type * type_k, ggml_type * type_v, char * why, size_t size);

// The hook in llama_init_from_model: resolves both types, turns flash attention on where it was left to choose, and
// refuses (logged) what cannot run. Every caller of the C API passes through it.
bool turbo_kv_prepare(const llama_model * model, llama_context_params * params);
