// Bringing tiles of K and V from device memory to shared memory.
//
// A group of warps shares a ring of slots. Items (K of a tile, then V of it, ...) go round the ring; while one is used,
// the next two are on their way. On sm_90 the copy engine fetches them and barriers in shared memory say when an item
// has come and when its slot is free; before that, every thread copies its share and the group meets once an item.
// Whole 16-byte units are copied, so up to 15 bytes on either side of a row come along.

#pragma once

#include "attend_params.cuh"
#include "ptx.cuh"

namespace turbo_cuda {

static __device__ __forceinline__ uint32_t address_skew(const char *p) {
    return (uint32_t) (reinterpret_cast<uintptr_t>(p) & 15u);
}

// Which tokens the launch before is still writing. Kept in shared memory: registers are short.
struct pending_rows {
    int low, high; // tokens low..high; low > high: not known, it may be any

    // All lanes of a warp.
    __device__ __forceinline__ explicit pending_rows(const pending_write &w) : low(0), high(-1) {
        if (w.n_rows > 0) {
            const int lane = threadIdx.x & 31, row = min(lane % 16, w.n_rows - 1), tensor = lane / 16;
            const char *at = w.ids[tensor] + row * w.ids_stride[tensor];
            const int64_t id =
                w.ids_64[tensor] ? *reinterpret_cast<const int64_t *>(at) : *reinterpret_cast<const int32_t *>(at);
            const int token = (int) (id - w.first_token), first = __shfl_sync(0xffffffffu, token, 0);
            // neighbours in order, the same ones in K and V
            if (__all_sync(0xffffffffu, token == first + row)) {
                low = first, high = first + w.n_rows - 1;
            }
        }
    }

    __device__ __forceinline__ bool known() const { return low <= high; }
    __device__ __forceinline__ bool concern(int first, int end) const { return first <= high && end > low; }
};

struct item_ring {
    uint8_t *slots;
    uint64_t *arrived, *released; // [ring_slots] each (sm_90)
    int slot_bytes, thread, threads, barrier_id;
    bool rows; // copy row by row: the staged heads are not all of a token
    int next_slot, next_parity, use_slot, use_parity;
    bool first_round;

    // By one thread of the group, before a block-wide barrier.
    __device__ __forceinline__ void init_barriers() const {
#ifdef TURBO_BULK_COPY
        for (int i = 0; i < ring_slots; i++) {
            phase_init(arrived + i, rows ? threads : 1);
            phase_init(released + i, threads / 32);
        }
#endif
    }

    // Start fetching the tokens [first, first + count) as the next item. Called by all threads of the group. Without
    // tokens there is nothing to fetch, and nobody will wait for the item.
    __device__ __forceinline__ void fetch(const stage_params &p, const char *source, int first, int count) {
        uint8_t *slot = slots + next_slot * slot_bytes;
        const char *start = source + (int64_t) first * p.stride_token;
#ifdef TURBO_BULK_COPY
        if (count > 0 && (rows || thread == 0)) {
            if (!first_round) {
                phase_wait(released + next_slot, next_parity ^ 1);
            }
            if (rows) {
                fetch_rows(p, start, count, slot);
            } else {
                const uint32_t skew = address_skew(start),
                               bytes = (skew + (count - 1) * p.pitch + p.row_bytes + 15) / 16 * 16;
                phase_arrive_with_bytes(arrived + next_slot, bytes);
                bulk_copy(slot, start - skew, bytes, arrived + next_slot);
            }
        }
#else
        if (rows) {
            fetch_rows(p, start, count, slot);
        } else if (count > 0) {
            const uint32_t skew = address_skew(start);
            const int units = (skew + (count - 1) * p.pitch + p.row_bytes + 15) / 16;
            for (int i = thread; i < units; i += threads) {
                copy_async_16(slot + 16 * i, start - skew + 16 * i);
            }
        }
        copy_async_commit();
#endif
        if (++next_slot == ring_slots) {
            next_slot = 0, next_parity ^= 1, first_round = false;
        }
    }

    __device__ __forceinline__ void fetch_rows(const stage_params &p, const char *start, int count,
                                               uint8_t *slot) const {
#ifdef TURBO_BULK_COPY
        uint32_t bytes = 0;
        for (int row = thread; row < count; row += threads) {
            bytes += (address_skew(start + row * p.stride_token) + p.row_bytes + 15) / 16 * 16;
        }
        phase_arrive_with_bytes(arrived + next_slot, bytes);
#endif
        for (int row = thread; row < count; row += threads) {
            const char *row_start = start + row * p.stride_token;
            const uint32_t skew = address_skew(row_start), row_bytes = (skew + p.row_bytes + 15) / 16 * 16;
#ifdef TURBO_BULK_COPY
            bulk_copy(slot + row * p.pitch, row_start - skew, row_bytes, arrived + next_slot);
#else
            for (uint32_t at = 0; at < row_bytes; at += 16) {
                copy_async_16(slot + row * p.pitch + at, row_start - skew + at);
            }
#endif
        }
    }

    // The next item in use: wait until it has come. Before sm_90 this is also where the slot used before becomes free.
    __device__ __forceinline__ const uint8_t *take() {
#ifdef TURBO_BULK_COPY
        phase_wait(arrived + use_slot, use_parity);
#else
        copy_async_wait<1>();
        if (threads == 32) {
            __syncwarp();
        } else {
            barrier(barrier_id, threads);
        }
#endif
        return slots + use_slot * slot_bytes;
    }

    // This warp has read what it needs of the item.
    __device__ __forceinline__ void release() {
#ifdef TURBO_BULK_COPY
        __syncwarp();
        if ((thread & 31) == 0) {
            phase_arrive(released + use_slot);
        }
#endif
        if (++use_slot == ring_slots) {
            use_slot = 0, use_parity ^= 1;
        }
    }
};

} // namespace turbo_cuda
