// The one place that looks inside llama_kv_cache (which names it a friend). Not installed.
#pragma once

#include "turbo_shim.h"
#include "turbo_state.h"

#include "llama-kv-cache.h"
#include "turbo/llama/kv_center.h"

#include <algorithm>
#include <functional>
#include <utility>

struct turbo_kv_access {
    static int32_t count(const llama_kv_cache & cache) { return (int32_t) cache.layers.size(); }

    // Whether upstream's K-shift is right for this cache. It aborts without layers (a model has such a part whose layers
    // all use a sliding window) and on bf16 keys, and turns float keys in place without taking a centre off first.
    static bool can_turn(const llama_kv_cache & cache) {
        const auto good = [&](const auto & layer) {
            const bool centred = center_cells(cache, layer.il) != 0;
            return !layer.k || ggml_is_quantized(layer.k->type) || (layer.k->type != GGML_TYPE_BF16 && !centred);
        };
        return !cache.layers.empty() && std::all_of(cache.layers.begin(), cache.layers.end(), good);
    }

    // Cells of a stream whose keys in layer `il` share a centre; 0 if keys are stored as they are.
    static int32_t center_cells(const llama_kv_cache & cache, uint32_t il);

    // The centres of runs that the keys of a stream lack; null if they lack none, or one centre.
    static const ggml_tensor * runs(const llama_kv_cache & cache, const ggml_tensor * k_stream);

    // Whether centres of runs stand back behind one for all (kv_center.h).
    static bool flat(const llama_kv_cache & cache) { return cache.turbo_centers && cache.turbo_centers->flat(); }
    static void set_flat(llama_kv_cache & cache, bool flat) {
        if (cache.turbo_centers) {
            cache.turbo_centers->set_flat(flat);
        }
    }
    static bool empty(const llama_kv_cache & cache) {
        const auto unused = [](const llama_kv_cells & cells) { return cells.get_used() == 0; };
        return std::all_of(cache.v_cells.begin(), cache.v_cells.end(), unused);
    }

    // Facts of the cache's layer `index`, read from its tensors.
    static void read(const llama_kv_cache & cache, int32_t index, int32_t part, turbo_kv_layer * out);

    // Streams, rotation and layout of the cache; the other fields are left alone.
    static void identify(const llama_kv_cache & cache, turbo_kv_identity * out);

    // Cells and tensors of a stream, for saved state (kv_state.h).
    using tensor_visitor = std::function<void(ggml_tensor * tensor, int64_t n_values, bool transposed, uint32_t n_cells)>;
    static void for_tensors(const llama_kv_cache & cache, uint32_t stream, const tensor_visitor & f);
    static llama_kv_cells & cells(const llama_kv_cache & cache, uint32_t stream) { return cache.v_cells[stream]; }
    static uint32_t head(const llama_kv_cache & cache, uint32_t stream) { return cache.v_heads[stream]; }
    static uint32_t & head(llama_kv_cache & cache, uint32_t stream) { return cache.v_heads[stream]; }
    static uint32_t n_seq_max(const llama_kv_cache & cache) { return cache.n_seq_max; }
    static bool owns_cells(const llama_kv_cache & cache) { return cache.other == nullptr; }
    static std::pair<uint32_t, uint32_t> streams(const llama_kv_cache & cache, int32_t seq) {
        const uint32_t one = seq < 0 ? 0 : cache.seq_to_stream[(size_t) seq];
        return seq < 0 ? std::make_pair(0u, cache.n_stream) : std::make_pair(one, one + 1);
    }

    // Make sequence `seq` hold n tokens of random keys and values at positions 0 .. n-1 (a sliding window holds the last
    // ones). False if the cache is too small.
    static bool fill(llama_kv_cache & cache, int32_t seq, int32_t n, uint32_t seed);
};
