// Teams of warps (attend_rows.cuh): their shape, the tiles on their way from device memory, and shared memory.

#pragma once

#include "attend_walk.cuh"
#include "rows_unpack.cuh"

namespace turbo_cuda {

static constexpr int rows_warps = 8; // they need nearly all registers

// Heads of blocks * 4 * values_per_lane values; a warp takes 16 * tiles columns.
template <int blocks_, int tiles_, int values_per_lane_> struct rows_shape {
    static constexpr int blocks = blocks_, tiles = tiles_, values_per_lane = values_per_lane_;
    static constexpr int parts = values_per_lane / 8, block_values = values_per_lane * 4;
    static constexpr int head_dim = blocks * block_values, chunks = head_dim / 8;
    static constexpr int steps = head_dim / 16; // of a product over the head
    static constexpr int keys = head_dim > 128 ? 16 : 32, columns = 16 * tiles;
    static constexpr int row_bytes = head_dim * 2;
    static constexpr int tile_bytes = keys * row_bytes; // of K or V, unpacked
    static constexpr int parked_row = head_dim + 4;
    using plain = attend_shape<blocks, 1, 1, values_per_lane, family_scalar>; // for what depends on the head only

    static __device__ __forceinline__ quarter_chunks<head_dim> lane_chunks() {
        return {(int) (threadIdx.x & 31) >> 2, (int) (threadIdx.x & 3)};
    }
};

// Staged tiles of a group, K and V together: one is used while the next is on its way. A tile that the launch before
// may be writing is waited for, and only then.
struct tile_ring {
    static constexpr int slots = 2;
    uint8_t *base;
    uint64_t *arrived, *released; // [slots] each (sm_90)
    const pending_rows *pending;
    int thread, threads, barrier_id; // of the group
    bool waited;

    static __host__ __device__ int slot_bytes(const attend_params &p) { return p.slot_bytes + p.v_slot_bytes; }
    __device__ __forceinline__ uint8_t *slot(const attend_params &p, int tile) const {
        return base + (tile & 1) * slot_bytes(p);
    }

    // By one thread of the group, before a block-wide barrier.
    __device__ __forceinline__ void init_barriers(const attend_params &p) const {
#ifdef TURBO_BULK_COPY
        for (int i = 0; i < slots; i++) {
            phase_init(arrived + i, p.copy_rows ? threads : 1);
            phase_init(released + i, threads / 32);
        }
#endif
    }

    // Start fetching the tile number `tile`: tokens [first, first + count). By all threads of the group.
    __device__ __forceinline__ void fetch(const attend_params &p, const char *k, const char *v, int tile, int first,
                                          int count) {
        uint8_t *to = slot(p, tile);
#ifdef TURBO_BULK_COPY
        if (count <= 0 || (!p.copy_rows && thread > 0)) {
            return;
        }
        if (!waited && pending->concern(first, first + count)) {
            wait_for_previous_kernel();
            waited = true;
        }
        if (tile >= slots) {
            phase_wait(released + (tile & 1), (tile / slots - 1) & 1);
        }
        const int rows = p.copy_rows ? (count - thread + threads - 1) / threads : 1; // of this thread
        uint32_t bytes = 0;
        for (int row = p.copy_rows ? thread : 0, i = 0; i < rows; i++, row += threads) {
            bytes += bytes_of(p.k, k, first + row, p.copy_rows ? 1 : count) +
                     bytes_of(p.v, v, first + row, p.copy_rows ? 1 : count);
        }
        phase_arrive_with_bytes(arrived + (tile & 1), bytes);
        for (int row = p.copy_rows ? thread : 0, i = 0; i < rows; i++, row += threads) {
            copy(p.k, k, first + row, p.copy_rows ? 1 : count, to + row * p.k.pitch, arrived + (tile & 1));
            copy(p.v, v, first + row, p.copy_rows ? 1 : count, to + p.slot_bytes + row * p.v.pitch,
                 arrived + (tile & 1));
        }
#else
        if (count > 0 && !waited && pending->concern(first, first + count)) {
            wait_for_previous_kernel();
            waited = true;
        }
        const int rows = p.copy_rows ? count : count > 0; // pieces that lie together
        for (int row = 0; row < rows; row++) {
            copy(p.k, k, first + row, p.copy_rows ? 1 : count, to + row * p.k.pitch);
            copy(p.v, v, first + row, p.copy_rows ? 1 : count, to + p.slot_bytes + row * p.v.pitch);
        }
        copy_async_commit();
#endif
    }

    // Bytes of `count` tokens from `first` on, in whole units of 16.
    static __device__ __forceinline__ uint32_t bytes_of(const stage_params &x, const char *source, int first,
                                                        int count) {
        return (address_skew(source + (int64_t) first * x.stride_token) + (count - 1) * x.pitch + x.row_bytes + 15) /
               16 * 16;
    }

#ifdef TURBO_BULK_COPY
    static __device__ __forceinline__ void copy(const stage_params &x, const char *source, int first, int count,
                                                uint8_t *to, uint64_t *phase) {
        const char *start = source + (int64_t) first * x.stride_token;
        bulk_copy(to, start - address_skew(start), bytes_of(x, source, first, count), phase);
    }
#else
    __device__ __forceinline__ void copy(const stage_params &x, const char *source, int first, int count,
                                         uint8_t *to) const {
        const char *start = source + (int64_t) first * x.stride_token;
        for (uint32_t at = 16 * thread, bytes = bytes_of(x, source, first, count); at < bytes; at += 16 * threads) {
            copy_async_16(to + at, start - address_skew(start) + at);
        }
    }
#endif

    // The tile has come, for all threads of the group.
    __device__ __forceinline__ const uint8_t *take(const attend_params &p, int tile) const {
#ifdef TURBO_BULK_COPY
        phase_wait(arrived + (tile & 1), tile / slots & 1);
#else
        copy_async_wait<1>();
        barrier(barrier_id, threads);
#endif
        return slot(p, tile);
    }

    // This warp has read what it needs of it.
    __device__ __forceinline__ void release(int tile) const {
#ifdef TURBO_BULK_COPY
        __syncwarp();
        if ((thread & 31) == 0) {
            phase_arrive(released + (tile & 1));
        }
#else
        barrier(barrier_id, threads);
#endif
    }
};

// Where the parts of a launch's shared memory begin.
template <class shape> struct rows_layout {
    uint8_t *base;

    // Pending rows, the first run of the block's stretch, and the barriers [group][2 * slots], whose memory is not used
    // again (shared_layout).
    static constexpr int barriers_at = 16,
                         header = barriers_at + rows_warps * 2 * tile_ring::slots * (int) sizeof(uint64_t);
    __device__ pending_rows *pending() const { return reinterpret_cast<pending_rows *>(base); }
    __device__ int *first_run() const { return reinterpret_cast<int *>(base + 8); }
    // Queries of a team as operands: [tile of 16 columns][step of 16 values][lane], and what their scores count.
    static __host__ __device__ int query_bytes(const attend_params &p) {
        return p.heads_per_block * p.warps_per_head * shape::columns * (shape::row_bytes + (int) sizeof(float));
    }
    __device__ uint8_t *queries(const attend_params &p, int head) const {
        return base + header + head * p.warps_per_head * shape::columns * shape::row_bytes;
    }
    __device__ float *scales(const attend_params &p, int head) const {
        return reinterpret_cast<float *>(queries(p, p.heads_per_block)) + head * p.warps_per_head * shape::columns;
    }
    static __host__ __device__ int scale_row(const attend_params &p) { // of all heads
        return p.heads_per_block * p.warps_per_head * shape::columns;
    }
    // What the runs of the block's stretch add to its scores: a row like the scales for each, behind them.
    static __host__ __device__ int run_bytes(const attend_params &p) {
        return p.run_room * scale_row(p) * (int) sizeof(float);
    }
    __device__ uint64_t *barriers(int group) const {
        return reinterpret_cast<uint64_t *>(base + barriers_at) + group * 2 * tile_ring::slots;
    }
    __device__ uint8_t *k_table(const attend_params &p) const { return base + header + query_bytes(p) + run_bytes(p); }
    __device__ uint8_t *v_table(const attend_params &p) const {
        return k_table(p) + (p.v.format == p.k.format ? 0 : look_up_bytes(p.k.format, 2));
    }
    // Unpacked tiles of a team: K and V, once or twice.
    static __host__ __device__ int team_bytes(const attend_params &p) { return p.tile_buffers * 2 * shape::tile_bytes; }
    __device__ uint8_t *tiles(const attend_params &p, int team) const {
        return v_table(p) + look_up_bytes(p.v.format, 2) + team * team_bytes(p);
    }
    __device__ uint8_t *ring(const attend_params &p, int group) const {
        return tiles(p, p.groups * p.heads_per_block) + group * tile_ring::slots * tile_ring::slot_bytes(p);
    }
    static __host__ size_t walking_bytes(const attend_params &p) {
        const int tables = look_up_bytes(p.v.format, 2) + (p.v.format == p.k.format ? 0 : look_up_bytes(p.k.format, 2));
        const int group = p.heads_per_block * team_bytes(p) + tile_ring::slots * tile_ring::slot_bytes(p);
        return (size_t) header + query_bytes(p) + tables + run_bytes(p) + p.groups * group;
    }
    // Afterwards: outputs [warp][column][parked_row], then (maximum, sum) [warp][column].
    static __host__ size_t parked_bytes() {
        return header + (size_t) rows_warps * shape::columns * (shape::parked_row + 2) * sizeof(float);
    }
    __device__ float *parked(int warp) const {
        return reinterpret_cast<float *>(base + header) + warp * shape::columns * shape::parked_row;
    }
    __device__ float2 *states(int warp) const {
        return reinterpret_cast<float2 *>(parked(rows_warps)) + warp * shape::columns;
    }
};

} // namespace turbo_cuda
