// Reading a flash attention op, and the plan of its work.

#include "fattn_op.h"

#include <math.h>
#include <string.h>

#include "fattn_kernels.h"
#include "turbo/kv_runs.h"

namespace turbo_fattn {
namespace {

constexpr size_t line = 64;
// Queries and outputs of a unit, and the keys and values of a chunk, are to stay in a core's second-level cache.
constexpr size_t unit_bytes = 512 * 1024;
constexpr size_t chunk_bytes = 512 * 1024;

// From this many query rows on, causal masks make items differ in cost.
constexpr int64_t dealt_queries = 8;

size_t padded(size_t bytes) { return (bytes + line - 1) / line * line; }

size_t type_bytes(const side &s) {
    switch (s.type) {
        case GGML_TYPE_F16: return 2;
        case GGML_TYPE_Q8_0: return 34;
        case GGML_TYPE_Q4_0: return 18;
        default: return (size_t) s.desc->bytes;
    }
}

bool read_side(const ggml_tensor *tensor, const ggml_tensor *q, side *s) {
    s->type = tensor->type;
    s->desc = turbo_desc_of(tensor->type);
    if (!s->desc && tensor->type != GGML_TYPE_F16 && tensor->type != GGML_TYPE_Q8_0 && tensor->type != GGML_TYPE_Q4_0) {
        return false;
    }
    s->data = (const char *) tensor->data;
    s->width = (int) tensor->ne[0];
    s->block = s->desc ? s->desc->block : s->width;
    if (s->width <= 0 || s->width % 32 != 0 || s->width % s->block != 0 || tensor->nb[0] != type_bytes(*s)) {
        return false;
    }
    s->blocks = s->width / s->block;
    s->row_bytes = (size_t) (s->width / (s->desc                    ? s->desc->block
                                         : s->type == GGML_TYPE_F16 ? 1
                                                                    : 32)) *
                   type_bytes(*s);
    s->key_stride = tensor->nb[1];
    s->head_stride = tensor->nb[2];
    s->stream_stride = tensor->nb[3];
    if (tensor->ne[2] <= 0 || tensor->ne[3] <= 0 || q->ne[2] % tensor->ne[2] != 0 || q->ne[3] % tensor->ne[3] != 0) {
        return false;
    }
    s->heads_each = (int) (q->ne[2] / tensor->ne[2]);
    s->streams_each = (int) (q->ne[3] / tensor->ne[3]);
    return true;
}

// Centres lie beside the cache, all heads of a run together. They must cover the keys, in whole tiles. A flat tensor is one
// run over all of them.
bool read_runs(const ggml_tensor *tensor, const ggml_tensor *k, run_centers *runs) {
    memset(runs, 0, sizeof *runs);
    if (!tensor) {
        return true;
    }
    const int64_t each = turbo_runs_cells_each(tensor), width = k->ne[0];
    if (tensor->type != GGML_TYPE_F16 || tensor->ne[0] != width * k->ne[2] || tensor->nb[0] != 2 || each <= 0 ||
        each % tile_keys != 0 || (tensor->ne[1] - 1) * each < k->ne[1]) {
        return false;
    }
    const bool flat = turbo_runs_flat(tensor);
    runs->rows.type = tensor->type;
    runs->rows.data = (const char *) tensor->data;
    if (flat) {
        runs->rows.data += (size_t) (tensor->ne[1] - 1) * tensor->nb[1];
    }
    runs->rows.width = runs->rows.block = (int) width;
    runs->rows.blocks = 1;
    runs->rows.row_bytes = runs->rows.head_stride = (size_t) width * 2;
    runs->rows.key_stride = tensor->nb[1];
    runs->tiles_each = flat ? INT64_MAX : each / tile_keys;
    return true;
}

int common_divisor(int a, int b) {
    while (b != 0) {
        const int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

void read_params(const ggml_tensor *dst, op *o) {
    float params[3];
    memcpy(params, dst->op_params, sizeof params);
    o->scale = params[0];
    o->max_bias = params[1];
    o->cap = params[2];
    if (o->cap != 0.0f) {
        o->scale /= o->cap;
    }
    o->heads_low = 1;
    while (o->heads_low * 2 <= o->heads) {
        o->heads_low *= 2;
    }
    o->slope_low = powf(2.0f, -o->max_bias / (float) o->heads_low);
    o->slope_high = powf(2.0f, -o->max_bias / 2.0f / (float) o->heads_low);
}

// Chunks of keys in which the second-level cache holds all heads' bytes: heads lie side by side, so a cache line that
// one head brings in serves its neighbours too.
int64_t cached_chunks(const op &o, int64_t tiles) {
    if (o.k.head_stride > o.k.key_stride || o.heads == o.group) {
        return 1;
    }
    const size_t bytes = (size_t) o.keys * (o.k.key_stride + o.v.key_stride);
    const int64_t chunks = (int64_t) ((bytes + chunk_bytes - 1) / chunk_bytes), most = tiles / 4;
    return chunks < most ? chunks : most < 1 ? 1 : most;
}

// The number of chunks, at least `least`, that gives `threads` threads equal shares of `units` units, or nearly so.
int64_t choose_chunks(int64_t units, int64_t least, int64_t tiles, int threads) {
    int64_t chunks = least;
    while (chunks < tiles && units * chunks % threads != 0 && units * chunks < 8 * (int64_t) threads) {
        chunks++;
    }
    return chunks;
}

} // namespace

bool read_op(const ggml_tensor *dst, op *o) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2];
    o->q = q;
    o->mask = dst->src[3];
    o->sinks = dst->src[4];
    o->dst = const_cast<ggml_tensor *>(dst);
    const ggml_tensor *runs = dst->src[TURBO_RUNS_SRC];
    if (k->type == GGML_TYPE_F16 && v->type == GGML_TYPE_F16 && !runs) {
        return false;
    }
    if (q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) || q->ne[1] <= 0 || !read_side(k, q, &o->k) ||
        !read_side(v, q, &o->v) || !read_runs(runs, k, &o->runs)) {
        return false;
    }
    if (q->ne[0] != o->k.width || v->ne[1] != k->ne[1] || dst->type != GGML_TYPE_F32 || dst->nb[0] != sizeof(float) ||
        dst->ne[0] != o->v.width || dst->nb[1] != o->v.width * sizeof(float)) {
        return false;
    }
    if (o->mask && (o->mask->type != GGML_TYPE_F16 || o->mask->nb[0] != 2)) {
        return false;
    }
    o->keys = k->ne[1];
    o->queries = q->ne[1];
    o->heads = q->ne[2];
    o->streams = q->ne[3];
    o->group = common_divisor(o->k.heads_each, o->v.heads_each);
    read_params(dst, o);
    return true;
}

float head_slope(const op &o, int64_t head) {
    if (o.max_bias <= 0.0f) {
        return 1.0f;
    }
    return head < o.heads_low ? powf(o.slope_low, (float) (head + 1))
                              : powf(o.slope_high, (float) (2 * (head - o.heads_low) + 1));
}

plan make_plan(const op &o, int threads, bool split_keys) {
    plan p;
    const size_t row_bytes = (size_t) (o.k.width + o.v.width) * sizeof(float);
    int64_t most = (int64_t) (unit_bytes / (row_bytes * (size_t) o.group));
    most = most < 1 ? 1 : most;
    p.runs = (o.queries + most - 1) / most;
    p.unit_queries = (o.queries + p.runs - 1) / p.runs;
    p.units = o.streams * (o.heads / o.group) * p.runs;
    p.unit_rows = p.unit_queries * o.group;
    p.tiles = (o.keys + tile_keys - 1) / tile_keys;
    const bool many = o.queries >= dealt_queries;
    p.chunks = split_keys ? choose_chunks(p.units, many ? 1 : cached_chunks(o, p.tiles), p.tiles, threads) : 1;
    p.dealt = many && p.units * p.chunks > threads;
    p.thread_bytes = cut_scratch(o, p.unit_rows, NULL).bytes;
    p.partial_bytes = 0;
    if (p.chunks > 1) {
        p.partial_bytes = padded((size_t) (p.units * p.chunks * p.unit_rows) * (size_t) (o.v.width + 2) *
                                 sizeof(float));
    }
    return p;
}

size_t plan_bytes(const plan &p, int threads) { return line + p.thread_bytes * (size_t) threads + p.partial_bytes; }

scratch cut_scratch(const op &o, int64_t unit_rows, char *base) {
    scratch s;
    size_t at = 0;
    const auto take = [&](size_t bytes) {
        char *part = base ? base + at : NULL;
        at += padded(bytes);
        return part;
    };
    const size_t rows = (size_t) unit_rows;
    const size_t word = sizeof(float); // the larger element of the two engines
    const size_t k_width = (size_t) o.k.width, v_width = (size_t) o.v.width;
    s.queries = take(rows * k_width * word);
    s.query_scales = (float *) (void *) take(rows * (size_t) o.k.blocks * word);
    s.out = (float *) (void *) take(rows * v_width * word);
    s.top = (float *) (void *) take(rows * word);
    s.sum = (float *) (void *) take(rows * word);
    s.sums = (float *) (void *) take(rows * sum_lanes * word);
    s.masks = (const uint16_t **) (void *) take(rows * sizeof(const uint16_t *));
    s.slopes = (float *) (void *) take(rows * word);
    s.k_tile = take(tile_keys * k_width * word);
    s.v_tile = take(tile_keys * v_width * word);
    s.k_scales = (float *) (void *) take(tile_keys * (size_t) o.k.blocks * word);
    s.v_scales = (float *) (void *) take(tile_keys * (size_t) o.v.blocks * word);
    s.codes = (int8_t *) take(tile_keys * TURBO_MAX_BLOCK);
    s.rows = (float *) (void *) take(pack_keys_each * k_width * word);
    // Float keys are scored with queries that are what the centres need.
    s.run_queries = (float *) (void *) (o.runs.tiles_each == 0 ? NULL : o.k.desc ? take(rows * k_width * word) : s.queries);
    s.run_scores = (float *) (void *) (o.runs.tiles_each == 0 ? NULL : take(rows * tile_keys * word));
    s.seen = (tile_range *) (void *) take((size_t) o.streams * sizeof(tile_range));
    s.sight = (uint8_t *) take(rows);
    s.bytes = at;
    return s;
}

} // namespace turbo_fattn
