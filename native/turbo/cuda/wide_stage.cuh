// Attention of many columns with warpgroup products (attend_wide.cuh): its shape, its ring of unpacked tiles, and
// shared memory.

#pragma once

#include "rows_stage.cuh"
#include "wgmma.cuh"

namespace turbo_cuda {

// Two warpgroups multiply, each for a head; for each, one unpacks K and one V. 64 columns are the rows of a product.
static constexpr int warpgroup = 128, wide_heads = 2, wide_columns = 64;
// Thread blocks share the cache out in units of so many tokens: runs of cells are multiples of it, so a tile has one.
static constexpr int wide_unit = 64;
static constexpr int unpacking_threads = 2 * wide_heads * warpgroup,
                     wide_threads = wide_heads * warpgroup + unpacking_threads;

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

// Heads of 128, one a multiplying warpgroup; tiles of `keys` tokens, `slots` of them staged. A warp has 16 columns.
template <int keys_, int slots_> struct wide_shape {
    static constexpr int keys = keys_, slots = slots_, blocks = 1, tiles = 1, values_per_lane = 32, parts = 4,
                         block_values = 128;
    static constexpr int head_dim = 128, chunks = head_dim / 8, columns = 16;
    static constexpr int tile_bytes = keys * head_dim * 2; // of K or V of a head, unpacked
    static constexpr int query_bytes = wide_columns * head_dim * 2;
    // Registers of a thread that multiplies, and of one that unpacks: together all there are. Formats that leave room
    // for three staged tiles are unpacked in fewer (measured).
    static constexpr int most_registers = slots == 3 ? 160 : 144, least_registers = slots == 3 ? 40 : 48;
    using plain = attend_shape<1, 1, 1, 32, family_scalar>; // for what depends on the head only

    static __device__ __forceinline__ swizzled_chunks<keys> lane_chunks() { return {}; }
};

// Unpacked tiles of a head on their way from the warpgroups that unpack to the one that multiplies: K and V in turns.
struct wide_ring {
    uint8_t *tiles;
    uint64_t *full, *free; // [depth] each
    int depth, place, parity;

    __device__ __forceinline__ void init_barriers() const {
        for (int i = 0; i < depth; i++) {
            phase_init(full + i, 4), phase_init(free + i, 4); // a warp each
        }
    }
    __device__ __forceinline__ void next(int step) {
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

// Staged tiles, K and V together: fetched by one thread, read by all that unpack. Tokens lie in the cache as they are
// staged. Rows that the launch before may be writing are waited for, and only then.
template <int slots> struct wide_stage {
    uint8_t *base;
    uint64_t *arrived, *released; // [slots] each
    int slot = 0, round = 0;      // the one in use, and the parity of the barriers' phase

    __device__ __forceinline__ void init_barriers() const {
        for (int i = 0; i < slots; i++) {
            phase_init(arrived + i, 1), phase_init(released + i, unpacking_threads / 32);
        }
    }
#ifdef TURBO_BULK_COPY
    // Start fetching `count` tokens from `first` on.
    __device__ __forceinline__ void fetch(const attend_params &p, const pending_rows &pending, int to, int first,
                                          int count) const {
        if (pending.concern(first, first + count)) {
            wait_for_previous_kernel();
        }
        const char *k = p.k.data + blockIdx.z * p.k.stride_stream + (int64_t) first * p.k.stride_token,
                   *v = p.v.data + blockIdx.z * p.v.stride_stream + (int64_t) first * p.v.stride_token;
        const uint32_t k_skew = address_skew(k), v_skew = address_skew(v);
        const uint32_t k_bytes = (k_skew + count * p.k.row_bytes + 15) / 16 * 16,
                       v_bytes = (v_skew + count * p.v.row_bytes + 15) / 16 * 16;
        uint8_t *tile = base + to * tile_ring::slot_bytes(p);
        phase_arrive_with_bytes(arrived + to, k_bytes + v_bytes);
        bulk_copy(tile, k - k_skew, k_bytes, arrived + to);
        bulk_copy(tile + p.slot_bytes, v - v_skew, v_bytes, arrived + to);
    }
    __device__ __forceinline__ const uint8_t *take(const attend_params &p) const {
        phase_wait(arrived + slot, round);
        return base + slot * tile_ring::slot_bytes(p);
    }
    // This warp has read what it needs of it.
    __device__ __forceinline__ void release() const {
        __syncwarp();
        if ((threadIdx.x & 31) == 0) {
            phase_arrive(released + slot);
        }
    }
    __device__ __forceinline__ void next() {
        if (++slot == slots) {
            slot = 0, round ^= 1;
        }
    }
#endif
};

// Where the parts of a launch's shared memory begin. Operands come first: they lie at multiples of 1,024.
template <class shape> struct wide_layout {
    uint8_t *base;

    __device__ uint8_t *queries(int head) const { return base + head * shape::query_bytes; }
    // An operand of ones, with which probabilities are added up.
    __device__ uint8_t *ones(const attend_params &p) const { return queries(p.heads_per_block); }
    __device__ uint8_t *tiles(const attend_params &p, int head) const {
        return ones(p) + 1024 + head * p.tile_buffers * shape::tile_bytes;
    }
    __device__ uint8_t *staged(const attend_params &p) const { return tiles(p, wide_heads); }
    __device__ uint8_t *k_table(const attend_params &p) const {
        return staged(p) + shape::slots * tile_ring::slot_bytes(p);
    }
    __device__ uint8_t *v_table(const attend_params &p) const {
        return k_table(p) + (p.v.format == p.k.format ? 0 : look_up_bytes(p.k.format, 2));
    }
    __device__ float *scales(const attend_params &p, int head) const {
        return reinterpret_cast<float *>(v_table(p) + look_up_bytes(p.v.format, 2)) + head * wide_columns;
    }
    // What the runs of the block's stretch add to a head's scores: wide_columns for each.
    __device__ float *run_sums(const attend_params &p, int head) const {
        return scales(p, p.heads_per_block) + head * p.run_room * wide_columns;
    }
    // The mask of the next tile, for a head's warps: 16 bytes a lane (wide_mask).
    static constexpr int mask_bytes = warpgroup * 16;
    __device__ uint8_t *mask(const attend_params &p, int head) const {
        return reinterpret_cast<uint8_t *>(run_sums(p, p.heads_per_block)) + head * mask_bytes;
    }
    __device__ uint64_t *staged_barriers(const attend_params &p) const {
        return reinterpret_cast<uint64_t *>(mask(p, p.heads_per_block));
    }
    __device__ wide_stage<shape::slots> stage(const attend_params &p) const {
        return {staged(p), staged_barriers(p), staged_barriers(p) + shape::slots};
    }
    __device__ wide_ring ring(const attend_params &p, int head) const {
        wide_ring r;
        r.depth = p.tile_buffers, r.place = r.parity = 0;
        r.tiles = tiles(p, head);
        r.full = staged_barriers(p) + 2 * shape::slots + head * 2 * r.depth;
        r.free = r.full + r.depth;
        return r;
    }
    static __host__ size_t bytes(const attend_params &p) {
        const int tables = look_up_bytes(p.v.format, 2) + (p.v.format == p.k.format ? 0 : look_up_bytes(p.k.format, 2));
        return (size_t) 2048 +
               p.heads_per_block * (shape::query_bytes + (1 + p.run_room) * wide_columns * sizeof(float) + mask_bytes) +
               wide_heads * p.tile_buffers * (shape::tile_bytes + 2 * sizeof(uint64_t)) +
               shape::slots * (tile_ring::slot_bytes(p) + 2 * sizeof(uint64_t)) + tables;
    }
};

} // namespace turbo_cuda
