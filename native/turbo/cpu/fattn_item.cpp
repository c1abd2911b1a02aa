// The loop over tiles of keys: unpack a tile once, take every panel of query rows through it.

#include "fattn_item.h"

#include <math.h>
#include <string.h>

#include "codec.h"
#include "fattn_tile.h"

namespace turbo_fattn {
namespace {

constexpr uint16_t half_minus_infinity = 0xfc00;

// How much of a tile a panel sees: nothing; some keys, or all with a bias; all, without any mask to apply.
enum sight : uint8_t { sees_none, sees_some, sees_all };

// Everything that stays the same while an item is computed.
struct context {
    const op &o;
    const kernels &kern;
    const unit &u;
    const scratch &s;
    const partial &result;
    const engine &k_engine, &v_engine;
    const char *k_data, *v_data; // first key and value of the unit's heads
    const char *run_data;        // centre of the first run, of the unit's K head
    int64_t panel_rows;          // rows a panel; the last may have fewer
    int64_t panels;
};

const char *head_data(const side &s, const unit &u) {
    return s.data + (u.head / s.heads_each) * s.head_stride + (u.stream / s.streams_each) * s.stream_stride;
}

// A query's mask, from key 0 on.
const uint16_t *mask_row(const op &o, int64_t stream, int64_t head, int64_t query) {
    const ggml_tensor *mask = o.mask;
    return (const uint16_t *) (const void *) ((const char *) mask->data + query * mask->nb[1] +
                                              (head % mask->ne[2]) * mask->nb[2] +
                                              (stream % mask->ne[3]) * mask->nb[3]);
}

// Queries as the K engine stores them, and where each row's mask lies.
void prepare_rows(const context &c) {
    const op &o = c.o;
    const side &k = o.k;
    float *row_values = c.s.rows;
    for (int64_t row = 0; row < c.u.rows; row++) {
        const int64_t query = c.u.query + row / o.group, head = c.u.head + row % o.group;
        const float *from = (const float *) (const void *) ((const char *) o.q->data + query * o.q->nb[1] +
                                                            head * o.q->nb[2] + c.u.stream * o.q->nb[3]);
        const float *rotated = from;
        if (k.desc) {
            turbo_rotate_row(from, row_values, k.width, k.block);
            rotated = row_values;
        }
        for (int i = 0; i < k.width; i++) {
            row_values[i] = rotated[i] * o.scale;
        }
        c.s.slopes[row] = head_slope(o, head);
        if (o.mask) {
            c.s.masks[row] = mask_row(o, c.u.stream, head, query);
        }
        if (o.runs.tiles_each != 0 && k.desc) {
            float *whole = c.s.run_queries + row * k.width;
            for (int i = 0; i < k.width; i++) {
                whole[i] = from[i] * o.scale;
            }
        }
        char *stored = c.s.queries + row * k.width * c.k_engine.element;
        for (int b = 0; b < k.blocks; b++) {
            c.k_engine.store_query(row_values + b * k.block, k.block, stored + b * k.block * c.k_engine.element,
                                   c.s.query_scales + row * k.blocks + b);
        }
    }
}

// What one row sees of a tile.
sight look(const uint16_t *mask, int count) {
    unsigned hidden = 0, open = 0; // bits that differ from "all hidden" and from "all zero"
    for (int i = 0; i < count; i++) {
        hidden |= mask[i] ^ half_minus_infinity;
        open |= mask[i];
    }
    return hidden == 0 ? sees_none : open == 0 && count == tile_keys ? sees_all : sees_some;
}

// Does any query of a stream see a key of the tile?
bool tile_is_seen(const op &o, int64_t stream, int64_t tile) {
    const int64_t key = tile * tile_keys;
    const int count = (int) (o.keys - key < tile_keys ? o.keys - key : tile_keys);
    for (int64_t head = 0; head < o.mask->ne[2]; head++) {
        for (int64_t query = 0; query < o.queries; query++) {
            if (look(mask_row(o, stream, head, query) + key, count) != sees_none) {
                return true;
            }
        }
    }
    return false;
}

// Note for each panel what its rows see of the tile; false if none sees any of it.
bool look_at_tile(const context &c, int64_t key, int count) {
    if (!c.o.mask) {
        memset(c.s.sight, count == tile_keys ? sees_all : sees_some, (size_t) c.panels);
        return true;
    }
    bool any = false;
    const uint16_t *last = NULL; // heads mostly share a mask
    sight row_sees = sees_none;
    for (int64_t panel = 0; panel < c.panels; panel++) {
        const int64_t first = panel * c.panel_rows;
        const int64_t end = first + c.panel_rows < c.u.rows ? first + c.panel_rows : c.u.rows;
        bool some = false, all = true;
        for (int64_t row = first; row < end; row++) {
            if (c.s.masks[row] != last) {
                last = c.s.masks[row];
                __builtin_prefetch(last + key + 2 * tile_keys);
                __builtin_prefetch(last + key + 2 * tile_keys + tile_keys / 2);
                row_sees = look(last + key, count);
            }
            some |= row_sees != sees_none;
            all &= row_sees == sees_all;
        }
        c.s.sight[panel] = all ? sees_all : some ? sees_some : sees_none;
        any |= some;
    }
    return any;
}

// The masks of a panel's rows from `key` on. A part tile gets copies that hide its end.
void panel_masks(const context &c, int64_t row, int rows, int64_t key, int count, uint16_t (*copies)[tile_keys],
                 const uint16_t **masks) {
    for (int r = 0; r < rows; r++) {
        if (count == tile_keys) {
            masks[r] = c.s.masks[row + r] + key;
            continue;
        }
        for (int i = 0; i < tile_keys; i++) {
            copies[r][i] = i < count ? 0 : half_minus_infinity;
        }
        if (c.o.mask) {
            memcpy(copies[r], c.s.masks[row + r] + key, (size_t) count * sizeof(uint16_t));
        }
        masks[r] = copies[r];
    }
}

// What `count` runs from `first` on add to the scores of all rows: a query's products with their centres, taken like
// those with a tile of float keys. Overwrites the key tile.
void score_runs(const context &c, int64_t first, int count) {
    const side &rows = c.o.runs.rows;
    load_keys(rows, c.kern, c.s, c.run_data + (size_t) first * rows.key_stride, count);
    for (int64_t row = 0; row < c.u.rows; row += c.panel_rows) {
        const int64_t left = c.u.rows - row;
        c.kern.floats->scores(c.s.run_queries + row * rows.width, (size_t) rows.width * sizeof(float), NULL, 0,
                              (int) (left < c.panel_rows ? left : c.panel_rows), c.s.k_tile, rows.width, c.s.k_scales,
                              true, c.s.run_scores + row * tile_keys);
    }
}

// `run`: which of the runs at hand the tile belongs to; -1 without centres.
void attend_panel(const context &c, int64_t row, int rows, sight sees, int64_t key, int count, int run) {
    const side &k = c.o.k, &v = c.o.v;
    alignas(64) float scores[max_panel * tile_keys];
    alignas(64) float weights[max_panel * tile_keys];
    float carry[max_panel], units[max_panel], added[max_panel] = {};
    uint16_t copies[max_panel][tile_keys];
    const uint16_t *masks[max_panel];

    const size_t element = c.k_engine.element;
    const char *queries = c.s.queries + row * k.width * element;
    for (int b = 0; b < k.blocks; b++) {
        c.k_engine.scores(queries + b * k.block * element, k.width * element, c.s.query_scales + row * k.blocks + b,
                          k.blocks, rows, c.s.k_tile + (size_t) b * tile_keys * k.block * element, k.block,
                          c.s.k_scales + b * tile_keys, b == 0, scores);
    }
    if (sees == sees_some) {
        panel_masks(c, row, rows, key, count, copies, masks);
    }
    for (int r = 0; r < rows && run >= 0; r++) {
        added[r] = c.s.run_scores[(row + r) * tile_keys + run];
    }
    c.kern.softmax(scores, rows, added, sees == sees_some ? masks : NULL, c.s.slopes + row, c.o.cap,
                   c.result.top + row, c.s.sums + row * sum_lanes, carry);
    for (int b = 0; b < v.blocks; b++) {
        c.v_engine.weigh(scores, c.s.v_scales + b * tile_keys, rows, weights, units);
        c.v_engine.accumulate(weights, units, carry, rows,
                              c.s.v_tile + (size_t) b * tile_keys * v.block * c.v_engine.element, v.block,
                              c.result.out + row * v.width + b * v.block, v.width);
    }
}

} // namespace

unit unit_of(const op &o, const plan &p, int64_t index) {
    unit u;
    const int64_t groups = o.heads / o.group;
    const int64_t run = index % p.runs;
    u.head = index / p.runs % groups * o.group;
    u.stream = index / p.runs / groups;
    u.query = run * p.unit_queries;
    const int64_t left = o.queries - u.query;
    u.queries = left < 0 ? 0 : left < p.unit_queries ? left : p.unit_queries;
    u.rows = u.queries * o.group;
    return u;
}

tile_range seen_tiles(const op &o, int64_t stream) {
    tile_range seen = {0, (o.keys + tile_keys - 1) / tile_keys};
    while (o.mask && seen.first < seen.end && !tile_is_seen(o, stream, seen.first)) {
        seen.first++;
    }
    while (o.mask && seen.first < seen.end && !tile_is_seen(o, stream, seen.end - 1)) {
        seen.end--;
    }
    return seen;
}

void attend(const op &o, const kernels &kern, const unit &u, const tile_range &tiles, const scratch &s,
            const partial &result) {
    // Panels of equal size waste fewer registers than full ones and a rest.
    const int64_t panels = (u.rows + kern.panel - 1) / kern.panel;
    const int64_t panel_rows = panels > 0 ? (u.rows + panels - 1) / panels : 0;
    const context c = {o,
                       kern,
                       u,
                       s,
                       result,
                       engine_of(kern, o.k),
                       engine_of(kern, o.v),
                       head_data(o.k, u),
                       head_data(o.v, u),
                       o.runs.rows.data + (size_t) (u.head / o.k.heads_each) * o.runs.rows.head_stride,
                       panel_rows,
                       panel_rows > 0 ? (u.rows + panel_rows - 1) / panel_rows : 0};
    memset(result.out, 0, (size_t) u.rows * (size_t) o.v.width * sizeof(float));
    memset(s.sums, 0, (size_t) (u.rows * sum_lanes) * sizeof(float));
    for (int64_t row = 0; row < u.rows; row++) {
        result.top[row] = -INFINITY;
    }
    prepare_rows(c);
    int64_t first_run = 0, end_run = 0; // the runs at hand
    for (int64_t tile = tiles.first; tile < tiles.end; tile++) {
        const int64_t key = tile * tile_keys;
        const int count = (int) (o.keys - key < tile_keys ? o.keys - key : tile_keys);
        if (!look_at_tile(c, key, count)) {
            continue;
        }
        if (tile + 1 < tiles.end) {
            const int64_t ahead = key + tile_keys;
            const int coming = (int) (o.keys - ahead < tile_keys ? o.keys - ahead : tile_keys);
            prefetch_tile(o.k, c.k_data + (size_t) ahead * o.k.key_stride, coming);
            prefetch_tile(o.v, c.v_data + (size_t) ahead * o.v.key_stride, coming);
        }
        int run = -1;
        if (o.runs.tiles_each != 0) {
            if (tile / o.runs.tiles_each >= end_run) {
                const int64_t left = (tiles.end - 1) / o.runs.tiles_each + 1 - tile / o.runs.tiles_each;
                first_run = tile / o.runs.tiles_each;
                end_run = first_run + (left < tile_keys ? left : tile_keys);
                score_runs(c, first_run, (int) (end_run - first_run));
            }
            run = (int) (tile / o.runs.tiles_each - first_run);
        }
        load_keys(o.k, kern, s, c.k_data + (size_t) key * o.k.key_stride, count);
        load_values(o.v, kern, s, c.v_data + (size_t) key * o.v.key_stride, count);
        for (int64_t panel = 0; panel < c.panels; panel++) {
            const int64_t row = panel * panel_rows;
            const sight sees = (sight) s.sight[panel];
            if (sees != sees_none) {
                attend_panel(c, row, (int) (u.rows - row < panel_rows ? u.rows - row : panel_rows), sees, key, count,
                             run);
            }
        }
    }
    for (int64_t row = 0; row < u.rows; row++) {
        const float *lanes = s.sums + row * sum_lanes;
        result.sum[row] = 0.0f;
        for (int i = 0; i < sum_lanes; i++) {
            result.sum[row] += lanes[i];
        }
    }
}

void finish_row(const op &o, const unit &u, int64_t row, float *out, float top, float sum) {
    const int64_t query = u.query + row / o.group, head = u.head + row % o.group;
    float factor = 1.0f;
    if (o.sinks) {
        const float sink = ((const float *) o.sinks->data)[head];
        const float now = sink > top ? sink : top;
        if (now != -INFINITY) {
            factor = expf(top - now);
            sum = sum * factor + expf(sink - now);
        }
    }
    factor = sum == 0.0f ? 0.0f : factor / sum;
    for (int i = 0; i < o.v.width; i++) {
        out[i] *= factor;
    }
    // dst is [V width, heads, queries, streams]
    float *to = (float *) (void *) ((char *) o.dst->data +
                                    ((u.stream * o.queries + query) * o.heads + head) * o.dst->nb[1]);
    if (o.v.desc) {
        turbo_unrotate_row(out, to, o.v.width, o.v.block);
    } else {
        memcpy(to, out, (size_t) o.v.width * sizeof(float));
    }
}

} // namespace turbo_fattn
