// Loading tiles of keys and values: turbo types through the codecs' unpacking, float types as floats.

#include "fattn_tile.h"

#include <string.h>

#include "codec.h"

namespace turbo_fattn {
namespace {

// Unpack block b of `count` keys from `from` on, codes into the scratch; the rest of the tile becomes zeros.
void unpack_codes(const side &side_, const scratch &s, const char *from, int b, int count, float *scales) {
    turbo_unpack(side_.desc, from + (size_t) b * (size_t) side_.desc->bytes, side_.key_stride, count, s.codes, scales);
    if (count < tile_keys) {
        memset(s.codes + count * side_.block, 0, (size_t) (tile_keys - count) * (size_t) side_.block);
        memset(scales + count, 0, (size_t) (tile_keys - count) * sizeof(float));
    }
}

// Keys or values first..end of a tile as floats; those from `count` on become zeros.
void load_floats(const side &side_, const kernels &kern, const char *from, int first, int end, int count, float *rows) {
    const int valid = count < end ? (count > first ? count - first : 0) : end - first;
    const size_t width = (size_t) side_.width;
    kern.load_rows(side_.type, from + (size_t) first * side_.key_stride, side_.key_stride, valid, side_.width, rows);
    memset(rows + (size_t) valid * width, 0, (size_t) (end - first - valid) * width * sizeof(float));
}

// Float types have no scales of their own.
void unit_scales(float *scales) {
    for (int i = 0; i < tile_keys; i++) {
        scales[i] = 1.0f;
    }
}

} // namespace

const engine &engine_of(const kernels &kern, const side &s) { return s.desc ? *kern.codes : *kern.floats; }

void load_keys(const side &k, const kernels &kern, const scratch &s, const char *from, int count) {
    if (!k.desc) {
        for (int first = 0; first < tile_keys; first += pack_keys_each) {
            load_floats(k, kern, from, first, first + pack_keys_each, count, s.rows);
            kern.pack_keys(s.rows, k.width, (float *) (void *) s.k_tile + first);
        }
        unit_scales(s.k_scales);
        return;
    }
    const engine &engine_ = engine_of(kern, k);
    for (int b = 0; b < k.blocks; b++) {
        unpack_codes(k, s, from, b, count, s.k_scales + b * tile_keys);
        engine_.pack_key_codes(s.codes, k.block, s.k_tile + (size_t) b * tile_keys * k.block * engine_.element);
    }
}

void load_values(const side &v, const kernels &kern, const scratch &s, const char *from, int count) {
    if (!v.desc) {
        load_floats(v, kern, from, 0, tile_keys, count, (float *) (void *) s.v_tile);
        unit_scales(s.v_scales);
        return;
    }
    const engine &engine_ = engine_of(kern, v);
    for (int b = 0; b < v.blocks; b++) {
        unpack_codes(v, s, from, b, count, s.v_scales + b * tile_keys);
        engine_.pack_value_codes(s.codes, v.block, s.v_tile + (size_t) b * tile_keys * v.block * engine_.element);
    }
}

void prefetch_tile(const side &s, const char *from, int count) {
    for (int key = 0; key < count; key++, from += s.key_stride) {
        const char *end = from + s.row_bytes;
        for (const char *line = from - (uintptr_t) from % 64; line < end; line += 64) {
            __builtin_prefetch(line);
        }
    }
}

} // namespace turbo_fattn
