// Attention of many columns with warpgroup products (attend_wide.cuh): its shape, its ring of unpacked tiles, and shared memory.

#pragma once

#include "rows_stage.cuh"
#include "wgmma.cuh"

namespace turbo_cuda {

// Two warpgroups multiply, others unpack for them; 64 columns are the rows of a product.
static constexpr int wide_pairs = 2, wide_columns = 64, warpgroup = 128;

// Where a lane's chunks go: a token is two rows of 64 halves, `keys` rows apart, exchanged as products expect it. Which
// token of eight a lane has keeps stores of eight lanes in banks of their own.
template <int keys> struct swizzled_chunks {
    static constexpr int eight_rows = 8 * 128;
    int row;
    uint32_t even, odd;

    __device__ __forceinline__ swizzled_chunks() {
        const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
        row = g >> 1 | (g & 1) << 2;
        even = row * 128 + ((t ^ row) << 4), odd = even ^ 64;
    }
    __device__ __forceinline__ uint32_t at(int i) const { return (i & 1 ? odd : even) + i / 2 * keys * 128; }
};

// Heads of 128, `heads` of them a multiplying warpgroup; tiles of `keys` tokens. A warp has 16 columns.
template <int keys_, int heads_> struct wide_shape {
    static constexpr int keys = keys_, heads = heads_, blocks = 1, tiles = 1, values_per_lane = 32, parts = 4, block_values = 128;
    static constexpr int head_dim = 128, chunks = head_dim / 8, columns = 16;
    static constexpr int tile_bytes = keys * head_dim * 2; // of K or V of a head, unpacked
    static constexpr int query_bytes = wide_columns * head_dim * 2;
    using plain = attend_shape<1, 1, 1, 32, family_scalar>; // for what depends on the head only
    // Warpgroups that unpack: one for K and one for V of each head, or one for both where two heads' output leaves
    // registers for no more. All registers are shared out between those that multiply and those that unpack.
    static constexpr int unpackers = heads == 1 ? 4 : 2, threads = (wide_pairs + unpackers) * warpgroup;
    static constexpr int most_registers = heads == 1 ? 128 : 200, least_registers = 56;

    static __device__ __forceinline__ swizzled_chunks<keys> lane_chunks() { return {}; }
};

// Unpacked tiles on their way from the warpgroup that unpacks to the one that multiplies: K and V of a head in turns.
struct wide_ring {
    uint8_t *tiles;
    uint64_t *full, *free; // [depth] each
    int depth, place, parity;

    __device__ __forceinline__ void init_barriers() const {
        for (int i = 0; i < depth; i++) {
            phase_init(full + i, 4), phase_init(free + i, 4); // a warp each
        }
    }
    __device__ __forceinline__ void next(int step = 1) {
        place += step;
        if (place >= depth) {
            place -= depth, parity ^= 1;
        }
    }
#ifdef TURBO_BULK_COPY
    __device__ __forceinline__ void wait_free() const { phase_wait(free + place, parity ^ 1); }
    __device__ __forceinline__ void wait_full() const { phase_wait(full + place, parity); }
#endif
};

// Where the parts of a launch's shared memory begin. Operands come first: they lie at multiples of 1,024.
template <class shape> struct wide_layout {
    uint8_t *base;

    __device__ uint8_t *queries(int head) const { return base + head * shape::query_bytes; }
    __device__ uint8_t *tiles(const attend_params &p, int pair) const {
        return queries(p.heads_per_block) + pair * p.tile_buffers * shape::tile_bytes;
    }
    __device__ uint8_t *staged(const attend_params &p) const { return tiles(p, wide_pairs); }
    __device__ uint8_t *k_table(const attend_params &p) const {
        return staged(p) + tile_ring::slots * tile_ring::slot_bytes(p);
    }
    __device__ uint8_t *v_table(const attend_params &p) const {
        return k_table(p) + (p.v.format == p.k.format ? 0 : look_up_bytes(p.k.format, 2));
    }
    __device__ float *scales(const attend_params &p, int head) const {
        return reinterpret_cast<float *>(v_table(p) + look_up_bytes(p.v.format, 2)) + head * wide_columns;
    }
    __device__ pending_rows *pending(const attend_params &p) const {
        return reinterpret_cast<pending_rows *>(scales(p, p.heads_per_block));
    }
    __device__ uint64_t *staged_barriers(const attend_params &p) const {
        return reinterpret_cast<uint64_t *>(pending(p)) + 2;
    }
    // Whether the mask hides anything of a tile, as far as each of the four warps that unpack it has looked: [depth][4].
    __device__ uint32_t *hidden(const attend_params &p, int pair) const {
        return reinterpret_cast<uint32_t *>(staged_barriers(p) + 2 * tile_ring::slots) + pair * 4 * p.tile_buffers;
    }
    __device__ wide_ring ring(const attend_params &p, int pair) const {
        wide_ring r;
        r.depth = p.tile_buffers, r.place = r.parity = 0;
        r.tiles = tiles(p, pair);
        r.full = reinterpret_cast<uint64_t *>(hidden(p, wide_pairs)) + pair * 2 * r.depth;
        r.free = r.full + r.depth;
        return r;
    }
    static __host__ size_t bytes(const attend_params &p) {
        const int tables = look_up_bytes(p.v.format, 2) + (p.v.format == p.k.format ? 0 : look_up_bytes(p.k.format, 2));
        return (size_t) 1024 + p.heads_per_block * (shape::query_bytes + wide_columns * sizeof(float)) +
               wide_pairs * p.tile_buffers * (shape::tile_bytes + 4 * sizeof(uint32_t) + 2 * sizeof(uint64_t)) +
               tile_ring::slots * (tile_ring::slot_bytes(p) + 2 * sizeof(uint64_t)) + tables + 2 * sizeof(uint64_t);
    }
};

} // namespace turbo_cuda
