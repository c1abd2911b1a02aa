// The attention kernel: a thread block walks a stretch of the cache for some KV heads of one stream.
//
// Its warps form groups of one warp a head. A group owns a ring of shared-memory slots and walks every groups-th tile of
// 64 tokens: K of a tile, then V of it, each copied two items ahead. A warp keeps the running maximum, sum and output
// of its head's columns in registers, all in the rotated domain; groups are merged in shared memory at the end.

#pragma once

#include "attend_query.cuh"
#include "attend_tile.cuh"

namespace turbo_cuda {

struct group_stage {
    uint8_t *ring;
    uint8_t *mask; // two slots of mask_rows x 64 halves
    const char *k, *v, *mask_source;
    int thread, threads, barrier_id;

    __device__ __forceinline__ void sync() const {
        if (threads == 32) {
            __syncwarp();
        } else {
            barrier(barrier_id, threads);
        }
    }
};

static __device__ __forceinline__ uint32_t address_skew(const char *p) {
    return (uint32_t) (reinterpret_cast<uintptr_t>(p) & 15u);
}

// Start copying the tokens [first, first + count) of K or V into a slot. Whole 16-byte units are copied, so up to 15
// bytes on either side come along.
static __device__ void stage_rows(const stage_params &p, const char *source, int first, int count, uint8_t *slot, const group_stage &stage) {
    const char *start = source + (int64_t) first * p.stride_token;
    if (p.contiguous) {
        const uint32_t skew = address_skew(start);
        const int units = (skew + (count - 1) * p.pitch + p.row_bytes + 15) / 16;
        for (int i = stage.thread; i < units; i += stage.threads) {
            copy_async_16(slot + 16 * i, start - skew + 16 * i);
        }
        return;
    }
    const int row_units = p.pitch / 16;
    for (int i = stage.thread; i < count * row_units; i += stage.threads) {
        const int row = i / row_units, unit = i - row * row_units;
        const char *row_start = start + row * p.stride_token;
        const uint32_t skew = address_skew(row_start);
        if (16u * unit < skew + p.row_bytes) {
            copy_async_16(slot + row * p.pitch + 16 * unit, row_start - skew + 16 * unit);
        }
    }
}

static __device__ void stage_mask(const attend_params &p, int first, int count, uint8_t *slot, const group_stage &stage) {
    for (int i = stage.thread; i < p.mask_rows * (keys_per_tile / 2); i += stage.threads) {
        const int row = i / (keys_per_tile / 2), pair = i % (keys_per_tile / 2);
        const char *source = stage.mask_source + row * p.mask_stride_row + (int64_t) (first + 2 * pair) * 2;
        uint8_t *target = slot + row * (keys_per_tile * 2) + pair * 4;
        if (2 * pair + 1 < count && (reinterpret_cast<uintptr_t>(source) & 3u) == 0) {
            copy_async_4(target, source);
        } else {
            const uint16_t *values = reinterpret_cast<const uint16_t *>(source);
            const uint32_t low = 2 * pair < count ? values[0] : 0xfc00u, high = 2 * pair + 1 < count ? values[1] : 0xfc00u;
            *reinterpret_cast<uint32_t *>(target) = low | high << 16;
        }
    }
}

// Item 2i is K of the group's i-th tile, item 2i+1 its V. One commit an item, also past the end.
static __device__ __forceinline__ void stage_item(const attend_params &p, int item, int tile, int tile_end, const group_stage &stage) {
    if (tile < tile_end) {
        const int first = tile * keys_per_tile, count = min(keys_per_tile, p.n_kv - first);
        uint8_t *slot = stage.ring + (item % ring_slots) * p.slot_bytes;
        if (item & 1) {
            stage_rows(p.v, stage.v, first, count, slot, stage);
        } else {
            stage_rows(p.k, stage.k, first, count, slot, stage);
            if (p.mask) {
                stage_mask(p, first, count, stage.mask + (item / 2 % 2) * p.mask_rows * (keys_per_tile * 2), stage);
            }
        }
    }
    copy_async_commit();
}

static __device__ __forceinline__ tile_rows staged_rows(const stage_params &p, const char *source, int tile, const uint8_t *slot, int head) {
    const char *start = source + (int64_t) tile * keys_per_tile * p.stride_token;
    tile_rows rows;
    rows.shared = slot;
    rows.base = head * p.head_bytes;
    rows.pitch = p.pitch;
    rows.skew = address_skew(start);
    rows.skew_step = p.contiguous ? 0 : (uint32_t) (p.stride_token & 15);
    return rows;
}

// Running state of the columns 2t, 2t+1 of each tile.
template <class shape> struct column_state {
    float maximum[shape::tiles][2], sum[shape::tiles][2];
    float out[shape::blocks][shape::values_per_lane / 4][shape::tiles][4];
    int mask_row[shape::tiles][2]; // byte offset of the column's row in a mask slot
};

// Soft cap, mask and the end of the cache.
template <class shape>
static __device__ __forceinline__ void limit_scores(float (&s)[4][shape::tiles][4], const attend_params &p, const column_state<shape> &state,
                                                    int first, const uint8_t *mask) {
    const int g = (threadIdx.x & 31) >> 2;
    if (p.soft_cap != 0.0f) {
#pragma unroll
        for (int i = 0; i < 16 * shape::tiles; i++) {
            float &x = (&s[0][0][0])[i];
            x = p.soft_cap * tanhf(x);
        }
    }
#pragma unroll
    for (int m = 0; m < 4; m++) {
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = 16 * m + g + 8 * (i >> 1);
                if (p.mask) {
                    const __half bias = *reinterpret_cast<const __half *>(mask + state.mask_row[n][i & 1] + 2 * key);
                    s[m][n][i] = fmaf(__half2float(bias), log2_e, s[m][n][i]);
                } else if (first + key >= p.n_kv) {
                    s[m][n][i] = -INFINITY;
                }
            }
        }
    }
}

// Scores become probabilities relative to the tile's own maximum; weight is what the tile counts in the running output.
// Returns false if every score of the tile is masked.
template <class shape>
static __device__ __forceinline__ bool soften(float (&s)[4][shape::tiles][4], column_state<shape> &state, float (&weight)[shape::tiles][2]) {
    float top[shape::tiles][2];
    bool any = false, moved = false;
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float x = lowest_score;
#pragma unroll
            for (int m = 0; m < 4; m++) {
                x = fmaxf(x, fmaxf(s[m][n][c], s[m][n][c + 2]));
            }
#pragma unroll
            for (int step = 4; step <= 16; step *= 2) {
                x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
            }
            top[n][c] = x;
            any |= x > lowest_score;
            moved |= x > state.maximum[n][c];
        }
    }
    if (!__any_sync(0xffffffffu, any)) {
        return false;
    }
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
        for (int n = 0; n < shape::tiles; n++) {
            float scale[2];
#pragma unroll
            for (int c = 0; c < 2; c++) {
                const float maximum = fmaxf(state.maximum[n][c], top[n][c]);
                scale[c] = exp2_fast(state.maximum[n][c] - maximum);
                state.maximum[n][c] = maximum;
                state.sum[n][c] *= scale[c];
            }
#pragma unroll
            for (int b = 0; b < shape::blocks; b++) {
#pragma unroll
                for (int r = 0; r < shape::values_per_lane / 4; r++) {
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        state.out[b][r][n][i] *= scale[i & 1];
                    }
                }
            }
        }
    }
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float total = 0.0f;
#pragma unroll
            for (int m = 0; m < 4; m++) {
                s[m][n][c] = exp2_fast(s[m][n][c] - top[n][c]);
                s[m][n][c + 2] = exp2_fast(s[m][n][c + 2] - top[n][c]);
                total += s[m][n][c] + s[m][n][c + 2];
            }
            weight[n][c] = exp2_fast(top[n][c] - state.maximum[n][c]);
            state.sum[n][c] = fmaf(total, weight[n][c], state.sum[n][c]);
        }
    }
    return true;
}

// One tile of K: scores by the format's reader. The switch is uniform over the block and taken once a tile.
template <class shape>
static __device__ __forceinline__ void scores_by_format(float (&s)[4][shape::tiles][4], const stage_params &k, const tile_rows &rows,
                                                        const uint4 *fragments, const float *scales) {
    switch (k.format) {
        case KV_TURBO2: tile_scores<reader_2bit, shape>(s, rows, k.block_bytes, fragments, scales); break;
        case KV_TURBO3: tile_scores<reader_3bit, shape>(s, rows, k.block_bytes, fragments, scales); break;
        case KV_TURBO4: tile_scores<reader_4bit, shape>(s, rows, k.block_bytes, fragments, scales); break;
    }
}

template <class shape>
static __device__ __forceinline__ void values_by_format(column_state<shape> &state, const stage_params &v, const tile_rows &rows, int count,
                                                        const float (&p)[4][shape::tiles][4], const float (&weight)[shape::tiles][2]) {
    switch (v.format) {
        case KV_TURBO2: tile_values<reader_2bit, shape>(state.out, rows, count, v.block_bytes, p, weight); break;
        case KV_TURBO3: tile_values<reader_3bit, shape>(state.out, rows, count, v.block_bytes, p, weight); break;
        case KV_TURBO4: tile_values<reader_4bit, shape>(state.out, rows, count, v.block_bytes, p, weight); break;
    }
}

// Where the parts of a launch's shared memory begin.
template <class shape> struct shared_layout {
    uint8_t *base;
    __device__ uint4 *fragments(int head) const {
        return reinterpret_cast<uint4 *>(base) + head * shape::tiles * shape::blocks * shape::fragments;
    }
    __device__ float *scales(const attend_params &p, int head) const {
        return reinterpret_cast<float *>(fragments(p.heads_per_block)) + head * shape::tiles * shape::blocks * 8;
    }
    __device__ uint8_t *rings(const attend_params &p) const {
        return reinterpret_cast<uint8_t *>(scales(p, p.heads_per_block));
    }
};

// Rotate and lay out the queries of the block: one warp a (head, column tile, block of the head).
template <class shape>
static __device__ __forceinline__ void load_queries(const attend_params &p, const shared_layout<shape> &layout, int warps) {
    const int lane = threadIdx.x & 31;
    const int first_head = blockIdx.y / p.column_blocks * p.heads_per_block;
    const int first_column = blockIdx.y % p.column_blocks * shape::columns;
    const bool rotate = p.k.format <= KV_TURBO4_TCQ;
    for (int unit = threadIdx.x / 32; unit < p.heads_per_block * shape::tiles * shape::blocks; unit += warps) {
        const int b = unit % shape::blocks, n = unit / shape::blocks % shape::tiles, head = unit / (shape::blocks * shape::tiles);
        const int column = first_column + 8 * n + lane / 4;
        const int row = column / p.gqa, q_head = (first_head + head) * p.gqa + column % p.gqa;
        const char *source = p.q + blockIdx.z * p.q_stride_stream + row * p.q_stride_row + q_head * p.q_stride_head;
        const int block = n * shape::blocks + b;
        prepare_query<shape>(reinterpret_cast<const float *>(source) + b * shape::block_values, column < p.n_columns, rotate,
                             p.score_scale, layout.fragments(head) + block * shape::fragments, layout.scales(p, head) + 8 * block);
    }
}

// Walk the tiles tile, tile + groups, ... below tile_end. The ring already holds the first two items on their way.
template <class shape>
static __device__ __forceinline__ void walk(const attend_params &p, const group_stage &stage, column_state<shape> &state, int tile,
                                            int tile_end, int head, const uint4 *fragments, const float *scales) {
    for (int item = 0; tile < tile_end; item += 2, tile += p.groups) {
        const int first = tile * keys_per_tile;
        copy_async_wait<1>();
        stage.sync(); // K of this tile is there, and the group has finished with the slot before it
        stage_item(p, item + 2, tile + p.groups, tile_end, stage);
        float s[4][shape::tiles][4], weight[shape::tiles][2];
        scores_by_format<shape>(s, p.k, staged_rows(p.k, stage.k, tile, stage.ring + (item % ring_slots) * p.slot_bytes, head), fragments, scales);
        limit_scores<shape>(s, p, state, first, stage.mask + (item / 2 % 2) * p.mask_rows * (keys_per_tile * 2));
        const bool some = soften<shape>(s, state, weight);
        copy_async_wait<1>();
        stage.sync();
        stage_item(p, item + 3, tile + p.groups, tile_end, stage);
        if (some) {
            values_by_format<shape>(state, p.v, staged_rows(p.v, stage.v, tile, stage.ring + ((item + 1) % ring_slots) * p.slot_bytes, head),
                                    p.n_kv - first, s, weight);
        }
    }
    copy_async_wait<0>();
}

} // namespace turbo_cuda
