// What a context's KV cache really holds, read from its tensors, and the memory of a context by buffer.
#include "handles.h"

#include "llama-ext.h"
#include "llama-kv-cache-iswa.h"
#include "llama-kv-cache.h"
#include "llama-memory-hybrid-iswa.h"
#include "llama-memory-hybrid.h"

#include "ggml-backend.h"

#include <vector>

// Named as a friend in llama_kv_cache: the only place that looks inside the cache.
struct turbo_kv_access {
    static int32_t count(const llama_kv_cache & cache) { return (int32_t) cache.layers.size(); }

    static void read(const llama_kv_cache & cache, int32_t index, int32_t part, turbo_kv_layer * out) {
        const llama_kv_cache::kv_layer & layer = cache.layers[(size_t) index];
        *out = turbo_kv_layer{};
        out->layer = (int32_t) layer.il;
        out->part = part;
        out->n_cells = (int32_t) cache.get_size();
        out->n_stream = (int32_t) cache.get_n_stream();
        read_tensor(layer.k, &out->k_values, &out->k_bytes, out->type_k, out->buffer_k);
        read_tensor(layer.v, &out->v_values, &out->v_bytes, out->type_v, out->buffer_v);
    }

  private:
    static void read_tensor(const ggml_tensor * t, int64_t * values, int64_t * bytes, char * type, char * buffer) {
        if (!t) {
            return;
        }
        *values = ggml_nelements(t);
        *bytes = (int64_t) ggml_nbytes(t);
        turbo_copy_name(type, TURBO_NAME_MAX, ggml_type_name(t->type));
        turbo_copy_name(buffer, TURBO_NAME_MAX, t->buffer ? ggml_backend_buffer_name(t->buffer) : "");
    }
};

namespace {

enum cache_part { PART_FULL = 0, PART_SWA = 1, PART_OTHER = 2 };

struct cache_ref {
    const llama_kv_cache * cache;
    int32_t part;
};

void add_iswa(const llama_kv_cache_iswa * iswa, std::vector<cache_ref> & out) {
    out.push_back({ iswa->get_base(), PART_FULL });
    out.push_back({ iswa->get_swa(), PART_SWA });
}

// The attention caches behind a memory; recurrent states and indexers are not KV caches and are left out.
std::vector<cache_ref> find_caches(llama_memory_t memory) {
    std::vector<cache_ref> found;
    if (const auto * cache = dynamic_cast<llama_kv_cache *>(memory)) {
        found.push_back({ cache, PART_FULL });
    } else if (const auto * iswa = dynamic_cast<llama_kv_cache_iswa *>(memory)) {
        add_iswa(iswa, found);
    } else if (const auto * hybrid = dynamic_cast<llama_memory_hybrid *>(memory)) {
        found.push_back({ hybrid->get_mem_attn(), PART_FULL });
    } else if (const auto * hybrid_iswa = dynamic_cast<llama_memory_hybrid_iswa *>(memory)) {
        add_iswa(hybrid_iswa->get_mem_attn(), found);
    }
    return found;
}

}  // namespace

int32_t turbo_kv_layers(const turbo_context * ctx, turbo_kv_layer * out, int32_t cap) {
    return turbo_guard("kv_layers", [&] {
        int32_t n = 0;
        for (const cache_ref & ref : find_caches(llama_get_memory(ctx->ctx))) {
            for (int32_t i = 0; ref.cache && i < turbo_kv_access::count(*ref.cache); i++, n++) {
                if (n < cap) {
                    turbo_kv_access::read(*ref.cache, i, ref.part, &out[n]);
                }
            }
        }
        return n;
    });
}

int32_t turbo_memory_breakdown(const turbo_context * ctx, turbo_memory_row * out, int32_t cap) {
    return turbo_guard("memory_breakdown", [&] {
        int32_t n = 0;
        for (const auto & [type, bytes] : llama_get_memory_breakdown(ctx->ctx)) {
            if (n < cap) {
                turbo_copy_name(out[n].buffer, sizeof(out[n].buffer), ggml_backend_buft_name(type));
                out[n].model_bytes = (int64_t) bytes.model;
                out[n].context_bytes = (int64_t) bytes.context;
                out[n].compute_bytes = (int64_t) bytes.compute;
            }
            n++;
        }
        return n;
    });
}
