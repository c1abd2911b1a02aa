// Attention of short batches with warpgroup products (attend_batch.cuh): its shape, the tiles on their way
// from device memory, and shared memory.

#pragma once

#include "attend_walk.cuh"
#include "rows_stage.cuh"
#include "wgmma.cuh"

namespace turbo_cuda {

// Fewer heads than warpgroups leave several teams of warpgroups, each with a stretch of the cache of its own. Stretches
// are whole tiles: runs of cells are multiples of them, so a tile has one.
static constexpr int batch_threads = batch_warpgroups * 128;

// Heads of 128, `columns` of each; family as of attend_shape: a pair of formats, family_any, or family_each.
template <int columns_, int family_> struct batch_shape {
    static constexpr int family = family_;
    static constexpr int columns = columns_, tiles = columns / 8, keys = batch_keys;
    static constexpr int blocks = 1, block_values = 128, head_dim = 128;
    static constexpr int operand_row = 128; // bytes of a column of queries or of probabilities
};

// Staged tiles of a team, K and V together: fetched by one thread, read by all its warps. Rows that the launch before
// may be writing are waited for, and only then.
struct batch_ring {
    uint8_t *base;
    uint64_t *arrived, *released; // [slots] each
    int slots, warps;             // of the team
    int slot, round;              // the one in use, and the parity of its barriers' phase

    __device__ __forceinline__ void init_barriers() const {
        for (int i = 0; i < slots; i++) {
            phase_init(arrived + i, 1), phase_init(released + i, warps);
        }
    }
#ifdef TURBO_BULK_COPY
    // Start fetching `count` tokens from `first` on.
    __device__ __forceinline__ void fetch(const attend_params &p, const pending_rows &pending, int to, int first,
                                          int count) const {
        if (pending.concern(first, first + count)) {
            wait_for_previous_kernel();
        }
        const char *k = p.k.data + blockIdx.z * p.k.stride_stream, *v = p.v.data + blockIdx.z * p.v.stride_stream;
        uint8_t *tile = base + to * tile_ring::slot_bytes(p);
        phase_arrive_with_bytes(arrived + to,
                                tile_ring::bytes_of(p.k, k, first, count) + tile_ring::bytes_of(p.v, v, first, count));
        tile_ring::copy(p.k, k, first, count, tile, arrived + to);
        tile_ring::copy(p.v, v, first, count, tile + p.slot_bytes, arrived + to);
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
    // Fetch what comes `slots` tiles behind the tile before this one, which begins at `first`, to where that was.
    __device__ __forceinline__ void refill(const attend_params &p, const pending_rows &pending, int first,
                                           int end) const {
        const int later = first + slots * batch_keys;
        if (later < end) {
            const int to = slot == 0 ? slots - 1 : slot - 1;
            phase_wait(released + to, slot == 0 ? round ^ 1 : round);
            fetch(p, pending, to, later, min(batch_keys, end - later));
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
template <class shape> struct batch_layout {
    uint8_t *base;
    static constexpr int operand_bytes = shape::columns * shape::operand_row;
    // What a warpgroup has for itself: probabilities of this tile and the next, as others may still read; the largest
    // exponent of every column, when it is asked for; sums of probabilities in the end [warp][column]; the mask of the
    // next tile, 16 bytes a lane.
    static constexpr int maxima_at = 2 * operand_bytes, sums_at = maxima_at + shape::columns * (int) sizeof(int),
                         mask_at = sums_at + 4 * shape::columns * (int) sizeof(float),
                         group_bytes = (mask_at + 128 * 16 + 1023) / 1024 * 1024;

    __device__ uint8_t *queries(int head) const { return base + head * operand_bytes; }
    __device__ uint8_t *group(const attend_params &p, int number) const {
        return queries(p.heads_per_block) + number * group_bytes;
    }
    __device__ uint8_t *staged(const attend_params &p, int team) const {
        return group(p, batch_warpgroups) + team * p.tile_buffers * tile_ring::slot_bytes(p);
    }
    __device__ uint8_t *k_table(const attend_params &p) const { return staged(p, p.groups); }
    __device__ uint8_t *v_table(const attend_params &p) const {
        return k_table(p) + (p.v.format == p.k.format ? 0 : look_up_bytes(p.k.format, 2));
    }
    // What a unit of a head's scores counts, and behind it, a row for each, what the runs of the block's stretch add.
    static __host__ __device__ int scale_bytes(const attend_params &p) {
        return (1 + p.run_room) * shape::columns * (int) sizeof(float);
    }
    __device__ float *scales(const attend_params &p, int head) const {
        return reinterpret_cast<float *>(v_table(p) + look_up_bytes(p.v.format, 2) + head * scale_bytes(p));
    }
    __device__ batch_ring ring(const attend_params &p, int team) const {
        batch_ring r;
        r.base = staged(p, team);
        r.slots = p.tile_buffers, r.warps = 4 * p.heads_per_block, r.slot = r.round = 0;
        r.arrived = reinterpret_cast<uint64_t *>(scales(p, p.heads_per_block)) + team * 2 * r.slots;
        r.released = r.arrived + r.slots;
        return r;
    }
    // Of all that does not depend on how many tiles are staged, and 1,024 to begin at a multiple of them.
    static __host__ size_t fixed_bytes(const attend_params &p) {
        const int tables = look_up_bytes(p.v.format, 2) + (p.v.format == p.k.format ? 0 : look_up_bytes(p.k.format, 2));
        return (size_t) 1024 + p.heads_per_block * (operand_bytes + scale_bytes(p)) + batch_warpgroups * group_bytes +
               tables;
    }
    static __host__ size_t staged_bytes(const attend_params &p) {
        return (size_t) p.groups * p.tile_buffers * (tile_ring::slot_bytes(p) + 2 * sizeof(uint64_t));
    }
};

} // namespace turbo_cuda
