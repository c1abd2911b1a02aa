// The attention caches behind a context's memory.
#pragma once

#include <cstdint>
#include <vector>

class llama_kv_cache;
struct llama_memory_i;

enum turbo_kv_part { TURBO_KV_FULL = 0, TURBO_KV_WINDOW = 1 };

struct turbo_kv_cache_ref {
    llama_kv_cache * cache;
    int32_t part;
};

// Plain, sliding-window and hybrid memories; recurrent states and indexers are not KV caches and are left out. Empty for
// memories of other kinds.
std::vector<turbo_kv_cache_ref> turbo_kv_caches(llama_memory_i * memory);
