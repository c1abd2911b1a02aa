// The one place that looks inside llama_kv_cache (which names it a friend). Not installed.
#pragma once

#include "turbo_shim.h"
#include "turbo_state.h"

#include "llama-kv-cache.h"

struct turbo_kv_access {
    static int32_t count(const llama_kv_cache & cache) { return (int32_t) cache.layers.size(); }

    // Facts of the cache's layer `index`, read from its tensors.
    static void read(const llama_kv_cache & cache, int32_t index, int32_t part, turbo_kv_layer * out);

    // Streams, rotation and layout of the cache; the other fields are left alone.
    static void identify(const llama_kv_cache & cache, turbo_kv_identity * out);

    // Make sequence `seq` hold n tokens of random keys and values at positions 0 .. n-1 (a sliding window holds the last
    // ones). False if the cache is too small.
    static bool fill(llama_kv_cache & cache, int32_t seq, int32_t n, uint32_t seed);
};
