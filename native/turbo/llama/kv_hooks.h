// What upstream's KV cache and context call: the names that appear in native/patches/0002-kv-cache.patch.
#pragma once

#include "turbo/llama/kv_balance.h"
#include "turbo/llama/kv_center.h"
#include "turbo/llama/kv_mask.h"
#include "turbo/llama/kv_plan.h"
#include "turbo/llama/kv_resolve.h"
#include "turbo/llama/kv_runs.h"
#include "turbo/types.h"

#include <cstdint>

// Does the graph rotate keys or values of this type (Walsh-Hadamard, before they are stored)? The turbo types rotate
// themselves. q8_0 does without: centred keys gain little from it (docs/quality.md), and it costs four launches a layer.
static inline bool turbo_kv_graph_rotates(ggml_type type) {
    return ggml_is_quantized(type) && !turbo_type_is(type) && type != GGML_TYPE_Q8_0;
}

// Width (values) of the view of a head that a K-shift rotates. Upstream views only the n_rot rotated values, but a
// quantised block cannot be read in part: for those the whole head is decoded, and RoPE itself leaves the rest alone.
// MLA keys (n_embd_nope > 0) keep upstream's view.
static inline int64_t turbo_kv_shift_width(ggml_type type, uint32_t n_rot, uint32_t n_embd_head, uint32_t n_embd_nope) {
    return ggml_is_quantized(type) && n_embd_nope == 0 ? n_embd_head : n_rot;
}
