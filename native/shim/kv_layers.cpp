// What a context's KV cache really holds, read from its tensors, and the memory of a context by buffer.
#include "handles.h"
#include "kv_access.h"

#include "llama-context.h"
#include "llama-ext.h"
#include "turbo/kv_runs.h"
#include "turbo/llama/kv_caches.h"

#include "ggml-backend.h"

static void read_tensor(const ggml_tensor * t, int64_t * values, int64_t * bytes, char * type, char * buffer) {
    if (!t) {
        return;
    }
    *values = ggml_nelements(t);
    *bytes = (int64_t) ggml_nbytes(t);
    turbo_copy_name(type, TURBO_NAME_MAX, ggml_type_name(t->type));
    turbo_copy_name(buffer, TURBO_NAME_MAX, t->buffer ? ggml_backend_buffer_name(t->buffer) : "");
}

void turbo_kv_access::read(const llama_kv_cache & cache, int32_t index, int32_t part, turbo_kv_layer * out) {
    const llama_kv_cache::kv_layer & layer = cache.layers[(size_t) index];
    *out = turbo_kv_layer{};
    out->layer = (int32_t) layer.il;
    out->part = part;
    out->n_cells = (int32_t) cache.get_size();
    out->n_stream = (int32_t) cache.get_n_stream();
    out->k_center_cells = center_cells(cache, layer.il);
    read_tensor(layer.k, &out->k_values, &out->k_bytes, out->type_k, out->buffer_k);
    read_tensor(layer.v, &out->v_values, &out->v_bytes, out->type_v, out->buffer_v);
}

int32_t turbo_kv_access::center_cells(const llama_kv_cache & cache, uint32_t il) {
    if (!cache.turbo_centers) {
        return 0;
    }
    const auto & centers = cache.turbo_centers->by_layer[turbo_kv_centers::center];
    const auto found = centers.find(il);
    if (found == centers.end()) {
        return 0;
    }
    const int32_t run = turbo_runs_cells_each(found->second);
    return run != 0 ? run : (int32_t) cache.get_size();
}

int32_t turbo_kv_layers(const turbo_context * ctx, turbo_kv_layer * out, int32_t cap) {
    return turbo_guard("kv_layers", [&] {
        int32_t n = 0;
        for (const turbo_kv_cache_ref & ref : turbo_kv_caches(ctx->ctx->get_memory())) {
            for (int32_t i = 0; i < turbo_kv_access::count(*ref.cache); i++, n++) {
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
