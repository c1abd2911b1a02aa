#include "turbo/llama/kv_caches.h"

#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"

static std::vector<turbo_kv_cache_ref> both(const llama_kv_cache_iswa * iswa) {
    return { { iswa->get_base(), TURBO_KV_FULL }, { iswa->get_swa(), TURBO_KV_WINDOW } };
}

std::vector<turbo_kv_cache_ref> turbo_kv_caches(llama_memory_i * memory) {
    if (auto * cache = dynamic_cast<llama_kv_cache *>(memory)) {
        return { { cache, TURBO_KV_FULL } };
    }
    if (const auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        return both(iswa);
    }
    if (const auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        return { { hybrid->get_mem_attn(), TURBO_KV_FULL } };
    }
    if (const auto * hybrid_iswa = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        return both(hybrid_iswa->get_mem_attn());
    }
    return {};
}
