#include "turbo/llama/key_stats.h"

#include "llama-context.h"
#include "llama-model.h"

#include "ggml-backend.h"
#include "ggml.h"

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
    const bool queries = t->op == GGML_OP_FLASH_ATTN_EXT && t->src[0]->type == GGML_TYPE_F32;
    if (stats->ctx == nullptr) {
        return !ask; // not yet gathering: ask for nothing, stop nothing
    }
    if (ask) {
        // A backend may fuse RoPE with the write behind it and never store the rotated keys: a stop after RoPE keeps them.
        return keys || queries || t->op == GGML_OP_ROPE;
    }
    if (keys) {
        stats->keys_written(t);
    } else if (queries) {
        stats->queries_used(t);
    }
    return true;
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
    if (layer.n == 0) {
        layer.n_head_kv = hparams.n_head_kv(il);
        layer.head_dim = width / layer.n_head_kv;
        layer.sum.assign(width, 0);
        layer.sum_before.assign(width, 0);
        layer.square.assign(layer.n_head_kv, 0);
        layer.roped = behind_rope(src);
        ropes[il] = layer.roped ? turbo_rope_of(ctx, il) : turbo_rope();
    }
    const std::vector<char> bytes = span_of(src);
    std::vector<float> keys(width * rows);
    for (int64_t r = 0; r < rows; ++r) {
        memcpy(keys.data() + r * width, bytes.data() + r * src->nb[1], width * sizeof(float));
    }
    for (int64_t i = 0; i < width * rows; ++i) {
        layer.sum[i % width] += keys[i];
        layer.square[(i % width) / layer.head_dim] += double(keys[i]) * keys[i];
    }
    // Turning back by R(-p) leaves the magnitude factor squared.
    const float m = turbo_rope_magnitude(ropes[il], layer.head_dim);
    std::vector<int32_t> back(rows);
    std::iota(back.begin(), back.end(), position);
    for (int32_t & p : back) {
        p = -p;
    }
    turbo_rope_apply(ropes[il], keys, layer.head_dim, layer.n_head_kv, back);
    for (int64_t i = 0; i < width * rows; ++i) {
        layer.sum_before[i % width] += keys[i] / (m * m);
    }
    layer.n += rows;
}

void turbo_key_stats::queries_used(const ggml_tensor * attention) {
    const ggml_tensor * q = attention->src[0]; // [head_dim, tokens, heads]
    const ggml_tensor * k = attention->src[1];
    const int il = key_layer(k->view_src);
    if (il < 0 || layers.find(il) == layers.end()) {
        return;
    }
    turbo_layer_keys & layer = layers[il];
    layer.query.resize(layer.n_head_kv, 0);
    const int64_t group = q->ne[2] / layer.n_head_kv;
    const std::vector<char> bytes = span_of(q);
    for (int64_t h = 0; h < q->ne[2]; ++h) {
        for (int64_t r = 0; r < q->ne[1]; ++r) {
            const float * row = reinterpret_cast<const float *>(bytes.data() + r * q->nb[1] + h * q->nb[2]);
            double square = 0;
            for (int64_t i = 0; i < q->ne[0]; ++i) {
                square += double(row[i]) * row[i];
            }
            layer.query[h / group] += square / group;
        }
    }
    layer.n_query += q->ne[1];
    float scale;
    memcpy(&scale, attention->op_params, sizeof(scale));
    layer.attention_scale = scale;
}
