#include "turbo/llama/key_stats.h"

#include "llama-context.h"
#include "llama-model.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <numeric>

// The layer whose keys a SET_ROWS node stores, -1 for any other node. The cache names its key tensors "cache_…k_l<layer>".
static int key_layer(const ggml_tensor * cache) {
    if (cache == nullptr || strncmp(cache->name, "cache_", 6) != 0) {
        return -1;
    }
    const char * mark = strstr(cache->name, "k_l");
    return mark != nullptr ? atoi(mark + 3) : -1;
}

// Whether a RoPE lies on the way from the projection to the cache. Only shape changes may stand behind it.
static bool behind_rope(const ggml_tensor * t) {
    while (t != nullptr && (t->op == GGML_OP_VIEW || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_PERMUTE || t->op == GGML_OP_CONT
                            || t->op == GGML_OP_CONCAT || t->op == GGML_OP_SCALE)) {
        t = t->src[0];
    }
    return t != nullptr && t->op == GGML_OP_ROPE;
}

bool turbo_key_stats::observe(ggml_tensor * t, bool ask, void * user_data) {
    auto * stats = static_cast<turbo_key_stats *>(user_data);
    const bool keys = t->op == GGML_OP_SET_ROWS && key_layer(t->view_src) >= 0;
    const bool queries = t->op == GGML_OP_FLASH_ATTN_EXT && t->src[0]->type == GGML_TYPE_F32 && key_layer(t->src[1]->view_src) >= 0;
    if (stats->ctx == nullptr || stats->stopped) {
        return !ask && !stats->stopped; // not gathering: ask for nothing, stop nothing
    }
    if (ask) {
        // A device may fuse RoPE with the write behind it and never store the rotated keys: a stop after RoPE keeps them.
        const bool fusable = t->op == GGML_OP_ROPE && t->buffer != nullptr && !ggml_backend_buffer_is_host(t->buffer);
        return keys || queries || fusable;
    }
    if (keys) {
        stats->keys_written(t);
    } else if (queries) {
        stats->queries_used(t);
        stats->stopped = stats->layer_done && !stats->layer_done(++stats->seen);
    }
    return !stats->stopped;
}

// A tensor's bytes on the host, over its whole span (it may be strided).
static std::vector<char> span_of(const ggml_tensor * t) {
    std::vector<char> bytes(ggml_nbytes(t));
    ggml_backend_tensor_get(t, bytes.data(), 0, bytes.size());
    return bytes;
}

void turbo_key_stats::keys_written(const ggml_tensor * write) {
    const uint32_t il = key_layer(write->view_src);
    const ggml_tensor * src = write->src[0];
    const llama_hparams & hparams = ctx->get_model().hparams;
    turbo_layer_keys & layer = layers[il];
    const int64_t width = src->ne[0];
    const int64_t rows = src->ne[1];
    layer = turbo_layer_keys();
    layer.n = rows;
    layer.n_head_kv = hparams.n_head_kv(il);
    layer.head_dim = width / layer.n_head_kv;
    layer.sum.assign(width, 0);
    layer.sum_before.assign(width, 0);
    layer.square.assign(layer.n_head_kv, 0);
    layer.roped = behind_rope(src);
    ropes[il] = layer.roped ? turbo_rope_of(ctx, il) : turbo_rope();
    const std::vector<char> bytes = span_of(src);
    std::vector<float> & stored = keys[il];
    stored.resize(width * rows);
    for (int64_t r = 0; r < rows; ++r) {
        memcpy(stored.data() + r * width, bytes.data() + r * src->nb[1], width * sizeof(float));
    }
    for (int64_t i = 0; i < width * rows; ++i) {
        layer.sum[i % width] += stored[i];
        layer.square[(i % width) / layer.head_dim] += double(stored[i]) * stored[i];
    }
    const std::vector<float> before = turbo_rope_back(ropes[il], stored, layer.head_dim, layer.n_head_kv, 0, 1);
    for (int64_t i = 0; i < width * rows; ++i) {
        layer.sum_before[i % width] += before[i];
    }
}

// The mask of the queries of a record, over its keys; without a mask, all are seen.
static std::vector<float> mask_of(const ggml_tensor * mask, const turbo_attention_record & r) {
    std::vector<float> out(r.n_query * r.n_key, 0.0f);
    if (mask == nullptr) {
        return out;
    }
    const std::vector<char> bytes = span_of(mask); // f16, what flash attention takes
    for (int64_t i = 0; i < r.n_query; ++i) {
        const char * row = bytes.data() + (r.first_query + i * r.query_step) * mask->nb[1];
        ggml_fp16_to_fp32_row(reinterpret_cast<const ggml_fp16_t *>(row), out.data() + i * r.n_key, r.n_key);
    }
    return out;
}

void turbo_key_stats::queries_used(const ggml_tensor * attention) {
    const ggml_tensor * q = attention->src[0]; // [head_dim, tokens, heads]
    const int il = key_layer(attention->src[1]->view_src);
    const auto found = layers.find(il);
    // Of several layers that read the same keys the first decides.
    if (found == layers.end() || !found->second.moments.empty() || q->ne[1] != found->second.n || q->ne[3] != 1) {
        return;
    }
    turbo_layer_keys & layer = found->second;
    turbo_attention_record record;
    record.n_key = layer.n;
    record.n_query = (layer.n - record.first_query + record.query_step - 1) / record.query_step;
    record.head_dim = layer.head_dim;
    record.n_head_kv = layer.n_head_kv;
    record.n_head = q->ne[2];
    float params[2];
    memcpy(params, attention->op_params, sizeof(params));
    record.scale = params[0];
    record.max_bias = params[1];
    record.queries.resize(record.n_query * record.n_head * record.head_dim);
    const std::vector<char> bytes = span_of(q);
    layer.query.assign(layer.n_head_kv, 0);
    const int64_t group = record.n_head / layer.n_head_kv;
    for (int64_t h = 0; h < record.n_head; ++h) {
        for (int64_t i = 0; i < record.n_query; ++i) {
            float * row = record.queries.data() + (i * record.n_head + h) * record.head_dim;
            memcpy(row, bytes.data() + (record.first_query + i * record.query_step) * q->nb[1] + h * q->nb[2],
                   record.head_dim * sizeof(float));
            const double square = std::inner_product(row, row + record.head_dim, row, 0.0);
            layer.query[h / group] += square / double(group);
        }
    }
    layer.n_query = record.n_query;
    layer.attention_scale = record.scale;
    record.mask = mask_of(attention->src[3], record);
    record.keys = std::move(keys[il]);
    keys.erase(il);
    layer.moments = turbo_moments_of(record, ropes[il], n_threads);
}
