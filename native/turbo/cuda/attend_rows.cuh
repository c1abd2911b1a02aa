// Attention of many columns (query heads x rows of a KV head): short batches over a long cache.
//
// Unpacking costs more than the products, so a tile of tokens is unpacked once, to f16 in shared memory, and serves
// all columns from there. A team of warps has one KV head: its warps share the unpacking of a tile, then each
// multiplies it with 16 or 32 columns of its own (scores with the columns as rows of the product, so that probabilities
// are already laid out as the operand of the second one). Teams of all heads that a thread block stages form a group;
// groups take stretches of the cache of their own and are merged at the end, as are thread blocks.

#pragma once

#include "attend_merge.cuh"
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
};

// The reference of a column's probabilities follows its maximum only when that has grown by a factor of 2^8: rescaling
// the output costs more than the bits. Probabilities are kept times 2^7 as f16, so they are at most 2^15, and normal
// numbers down to 2^-21 of the reference.
static constexpr float probability_shift = 7.0f, most_growth = 8.0f;

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

    static constexpr int header = 16;
    __device__ pending_rows *pending() const { return reinterpret_cast<pending_rows *>(base); }
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
    __device__ uint64_t *barriers(const attend_params &p, int group) const {
        return reinterpret_cast<uint64_t *>(base + header + query_bytes(p)) + group * 2 * tile_ring::slots;
    }
    __device__ uint8_t *k_table(const attend_params &p) const {
        return reinterpret_cast<uint8_t *>(barriers(p, p.groups));
    }
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
        const int group = p.heads_per_block * team_bytes(p) +
                          tile_ring::slots * (tile_ring::slot_bytes(p) + 2 * (int) sizeof(uint64_t));
        return (size_t) header + query_bytes(p) + tables + p.groups * group;
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

// Rotate a query and store it as f16, relative to its largest value, as an operand. Half a warp does one.
template <class shape>
static __device__ __forceinline__ void prepare_column(float (&x)[shape::blocks][shape::block_values / 16], bool rotate,
                                                      float unit, uint8_t *queries, float *scales, int column) {
    constexpr int n = shape::block_values / 16;
    const int lane = threadIdx.x & 15;
    float top = 0.0f;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
        if (rotate) {
            const uint32_t signs = sign_word<shape::block_values>(lane * n / 32) >> (lane * n % 32);
#pragma unroll
            for (int j = 0; j < n; j++) {
                x[b][j] = flip_sign(x[b][j], signs, j);
            }
            hadamard_lanes<n, 16>(x[b]);
        }
#pragma unroll
        for (int j = 0; j < n; j++) {
            top = fmaxf(top, fabsf(x[b][j]));
        }
    }
#pragma unroll
    for (int step = 1; step < 16; step *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    }
    if (lane == 0) {
        scales[column] = top * unit;
    }
    const float factor = top > 0.0f ? __fdividef(1.0f, top) : 0.0f;
#pragma unroll
    for (int b = 0; b < shape::blocks; b++) {
#pragma unroll
        for (int j = 0; j < n; j += 4) {
            const int value = lane * n + j, step = b * shape::parts * 2 + shape::plain::register_of(value);
            uint32_t *to =
                reinterpret_cast<uint32_t *>(queries) +
                ((column / 16 * shape::steps + step) * 32 + column % 8 * 4 + shape::plain::quarter_of(value)) * 4 +
                column / 8 % 2;
            to[0] = two_halves(x[b][j] * factor, x[b][j + 1] * factor);
            to[2] = two_halves(x[b][j + 2] * factor, x[b][j + 3] * factor);
        }
    }
}

// The queries of all columns of the thread block.
template <class shape> static __device__ __forceinline__ void
prepare_columns(const attend_params &p, const rows_layout<shape> &layout, int first_head, int first_column) {
    constexpr int n = shape::block_values / 16;
    const int lane = threadIdx.x & 15, columns = p.warps_per_head * shape::columns;
    const bool rotate = p.k.format <= KV_TURBO4_TCQ;
    const float unit = p.score_scale * (rotate ? 1.0f / code_part : 1.0f);
    constexpr int depth = shape::blocks > 1 ? 2 : 4; // columns on their way at a time
    const int total = p.heads_per_block * columns;
#pragma unroll 1
    for (int start = threadIdx.x / 16; start < total; start += depth * rows_warps * 2) {
        float x[depth][shape::blocks][n];
#pragma unroll
        for (int d = 0; d < depth; d++) {
            const int i = start + d * rows_warps * 2, head_kv = i / columns,
                      column = first_column + i - head_kv * columns;
            const int row = p.by_gqa.divide(column), head = (first_head + head_kv) * p.gqa + column - row * p.gqa;
            const char *source = p.q + blockIdx.z * p.q_stride_stream + row * p.q_stride_row + head * p.q_stride_head;
            const bool real = i < total && column < p.n_columns;
#pragma unroll
            for (int b = 0; b < shape::blocks; b++) {
                const int first = b * shape::block_values + lane * n;
#pragma unroll
                for (int j = 0; j < n; j += 4) {
                    const float4 v = real ? *reinterpret_cast<const float4 *>(source + (first + j) * sizeof(float))
                                          : make_float4(0, 0, 0, 0);
                    x[d][b][j] = v.x, x[d][b][j + 1] = v.y, x[d][b][j + 2] = v.z, x[d][b][j + 3] = v.w;
                }
                if (p.q_scale != nullptr && real) {
#pragma unroll
                    for (int j = 0; j < n; j++) {
                        x[d][b][j] *= p.q_scale[head * shape::head_dim + first + j];
                    }
                }
            }
        }
#pragma unroll
        for (int d = 0; d < depth; d++) {
            const int i = start + d * rows_warps * 2, head_kv = i / columns, in_head = i - head_kv * columns;
            if (i < total) { // the same for a warp: both are even or odd
                prepare_column<shape>(x[d], rotate, unit, layout.queries(p, head_kv), layout.scales(p, head_kv),
                                      in_head);
            }
        }
    }
}

// Running state of the columns g and g + 8 of each tile. out[tile][c][i]: of column g (i < 2) or g + 8, the values 2t +
// (i & 1) of chunk c.
template <class shape> struct rows_state {
    float maximum[shape::tiles][2], sum[shape::tiles][2];
    float out[shape::tiles][shape::chunks][4];
};

// s[tile][n][i]: column g (i < 2) or g + 8, token 8n + 2t + (i & 1).
template <class shape>
static __device__ __forceinline__ void rows_scores(float (&s)[shape::tiles][shape::keys / 8][4], const uint4 *queries,
                                                   const uint8_t *k, const quarter_chunks<shape::head_dim> &chunks) {
#pragma unroll
    for (int i = 0; i < shape::steps / 2; i++) {
        uint4 a[2][shape::tiles], b[shape::keys / 8];
#pragma unroll
        for (int m = 0; m < shape::tiles; m++) {
            a[0][m] = queries[(m * shape::steps + 2 * i) * 32], a[1][m] = queries[(m * shape::steps + 2 * i + 1) * 32];
        }
#pragma unroll
        for (int n = 0; n < shape::keys / 8; n++) {
            b[n] = *reinterpret_cast<const uint4 *>(k + 8 * n * shape::row_bytes + chunks.at(i));
        }
#pragma unroll
        for (int n = 0; n < shape::keys / 8; n++) {
#pragma unroll
            for (int m = 0; m < shape::tiles; m++) {
                mma_f16(s[m][n], a[0][m], b[n].x, b[n].y);
            }
        }
#pragma unroll
        for (int n = 0; n < shape::keys / 8; n++) {
#pragma unroll
            for (int m = 0; m < shape::tiles; m++) {
                mma_f16(s[m][n], a[1][m], b[n].z, b[n].w);
            }
        }
    }
}

// Where a lane finds what a transposed load of two neighbouring chunks of 16 tokens takes from it: four bases, so that
// the rest of the address is a constant.
template <int head_dim> struct column_chunks {
    uint32_t base[4];

    __device__ __forceinline__ column_chunks() {
        const int lane = threadIdx.x & 31, token = lane & 15, right = lane >> 4, mask = chunk_mask(token);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            base[j] = token * head_dim * 2 + (((2 * j ^ (mask & 6)) + (right ^ (mask & 1))) << 4);
        }
    }
    // Chunks c and c + 1, c even.
    __device__ __forceinline__ uint32_t at(int c) const { return base[c / 2 % 4] + c / 8 * 128; }
};

// out += P x V; p[tile][n] as s of rows_scores.
template <class shape>
static __device__ __forceinline__ void rows_values(float (&out)[shape::tiles][shape::chunks][4],
                                                   const uint32_t (&p)[shape::tiles][shape::keys / 8][2],
                                                   const uint8_t *v, const column_chunks<shape::head_dim> &chunks) {
    const uint32_t base = shared_address(v);
#pragma unroll
    for (int k = 0; k < shape::keys / 16; k++) {
#pragma unroll
        for (int c = 0; c < shape::chunks; c += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, base + chunks.at(c) + 16 * k * shape::row_bytes);
#pragma unroll
            for (int m = 0; m < shape::tiles; m++) {
                const uint32_t a[4] = {p[m][2 * k][0], p[m][2 * k][1], p[m][2 * k + 1][0], p[m][2 * k + 1][1]};
                mma_f16(out[m][c], a, b[0], b[1]);
                mma_f16(out[m][c + 1], a, b[2], b[3]);
            }
        }
    }
}

// The mask of a warp's columns. Most tiles of a long cache are not masked at all: whether the next one is, is asked
// while this one is being worked on.
template <class shape> struct rows_mask {
    static constexpr int words = 4, lanes = shape::keys / 2, rows_a_word = 32 / lanes; // on their way
    const char *row; // of the warp's first column; null without a mask
    int rows;        // that its columns are of
    bool aligned;
    uint32_t ahead[words];

    __device__ __forceinline__ rows_mask(const attend_params &p, int column) {
        const int first = p.by_gqa.divide(min(column, p.n_columns - 1)),
                  last = p.by_gqa.divide(min(column + shape::columns, p.n_columns) - 1);
        row = p.mask == nullptr ? nullptr : p.mask + blockIdx.z * p.mask_stride_stream + first * p.mask_stride_row;
        rows = max(1, last - first + 1);
        aligned = ((reinterpret_cast<uintptr_t>(row) | p.mask_stride_row) & 3) == 0;
    }
    __device__ __forceinline__ bool quick() const { return row != nullptr && aligned && rows <= rows_a_word * words; }
    __device__ __forceinline__ void look(const attend_params &p, int first) {
        const int lane = threadIdx.x & 31;
        const char *at = row + (first + 2 * (lane % lanes)) * 2;
        const bool whole = first + shape::keys <= p.n_kv;
#pragma unroll
        for (int i = 0; i < words; i++) {
            const int r = rows_a_word * i + lane / lanes;
            ahead[i] = !whole ? 1u : r < rows ? *reinterpret_cast<const uint32_t *>(at + r * p.mask_stride_row) : 0u;
        }
    }
    __device__ __forceinline__ bool clear() const {
        return !__any_sync(0xffffffffu, (ahead[0] | ahead[1] | ahead[2] | ahead[3]) != 0);
    }
};

// Soft cap, mask and the end of the cache: scores become exponents to base 2. The tile begins at token `first`; column
// is the first one of the warp.
template <class shape>
static __device__ __forceinline__ void limit_rows(float (&s)[shape::tiles][shape::keys / 8][4],
                                                  float (&factor)[shape::tiles][2], const attend_params &p,
                                                  const rows_mask<shape> &mask, int first, int end, int column) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int first_row = p.by_gqa.divide(min(column, p.n_columns - 1));
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int row = p.by_gqa.divide(min(column + 16 * m + 8 * h + g, p.n_columns - 1)) - first_row;
            const __half *at = reinterpret_cast<const __half *>(mask.row + row * p.mask_stride_row) + first;
#pragma unroll
            for (int i = 0; i < shape::keys / 4; i++) {
                const int token = 8 * (i / 2) + 2 * t + i % 2;
                float x = s[m][i / 2][2 * h + i % 2] * factor[m][h];
                if (p.soft_cap != 0.0f) {
                    x = p.soft_cap * tanhf(x);
                }
                if (first + token >= end) {
                    x = -INFINITY;
                } else if (mask.row != nullptr) {
                    x += log2_e * __half2float(at[token]);
                }
                s[m][i / 2][2 * h + i % 2] = x;
            }
            factor[m][h] = 1.0f;
        }
    }
}

// Scores times `factor` become probabilities, relative to the running maximum.
template <class shape>
static __device__ __forceinline__ void soften_rows(uint32_t (&p)[shape::tiles][shape::keys / 8][2],
                                                   const float (&s)[shape::tiles][shape::keys / 8][4],
                                                   const float (&factor)[shape::tiles][2], rows_state<shape> &state) {
    float top[shape::tiles][2];
    bool moved = false;
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float x = fmaxf(s[m][0][2 * h], s[m][0][2 * h + 1]);
#pragma unroll
            for (int n = 1; n < shape::keys / 8; n++) {
                x = fmaxf(x, fmaxf(s[m][n][2 * h], s[m][n][2 * h + 1]));
            }
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
            x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2)) * factor[m][h];
            top[m][h] = fmaxf(x, state.maximum[m][h]);
            moved |= x > state.maximum[m][h] + most_growth;
        }
    }
    if (__any_sync(0xffffffffu, moved)) {
#pragma unroll
        for (int m = 0; m < shape::tiles; m++) {
            float scale[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                scale[h] = exp2_fast(state.maximum[m][h] - top[m][h]);
                state.maximum[m][h] = top[m][h];
                state.sum[m][h] *= scale[h];
            }
#pragma unroll
            for (int c = 0; c < shape::chunks; c++) {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    state.out[m][c][i] *= scale[i / 2];
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float offset = probability_shift - state.maximum[m][h];
#pragma unroll
            for (int n = 0; n < shape::keys / 8; n++) {
                const float x = exp2_fast(fmaf(s[m][n][2 * h], factor[m][h], offset)),
                            y = exp2_fast(fmaf(s[m][n][2 * h + 1], factor[m][h], offset));
                state.sum[m][h] += x + y;
                p[m][n][h] = two_halves(x, y);
            }
        }
    }
}

// Leave a warp's results in shared memory, in the order of the head.
template <class shape> static __device__ __forceinline__ void
park_rows(const attend_params &p, const rows_layout<shape> &layout, int warp, rows_state<shape> &state) {
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const float sum_unit = exp2_fast(-probability_shift),
                unit = p.v.format <= KV_TURBO4_TCQ ? sum_unit / code_part : sum_unit * half_weight;
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int column = 16 * m + 8 * h + g;
            float sum = state.sum[m][h];
            sum += __shfl_xor_sync(0xffffffffu, sum, 1);
            sum += __shfl_xor_sync(0xffffffffu, sum, 2);
            if (t == 0) {
                layout.states(warp)[column] = make_float2(state.maximum[m][h], sum * sum_unit);
            }
            float *to = layout.parked(warp) + column * shape::parked_row;
#pragma unroll
            for (int c = 0; c < shape::chunks; c++) {
                const int in_block = c % (shape::block_values / 8), r = in_block / 4 * 2 + (t >> 1);
                const int value = c / (shape::block_values / 8) * shape::block_values +
                                  shape::plain::position(in_block % 4, r, 2 * (t & 1));
                *reinterpret_cast<float2 *>(to + value) =
                    make_float2(state.out[m][c][2 * h] * unit, state.out[m][c][2 * h + 1] * unit);
            }
        }
    }
}

// Merge the groups; write the output itself if the cache is not split, else a partial result.
template <class shape> static __device__ __forceinline__ void
merge_rows(const attend_params &p, const rows_layout<shape> &layout, int first_head, int first_column) {
    constexpr int lanes = shape::head_dim < 128 ? shape::head_dim / 4 : 32, passes = shape::head_dim / (4 * lanes);
    const int lane = threadIdx.x & 31, team = p.warps_per_head * shape::columns, columns = p.heads_per_block * team;
    const int warps = p.heads_per_block * p.warps_per_head; // of a group
    for (int unit = threadIdx.x / 32; unit < columns * passes; unit += rows_warps) {
        const int head_column = unit / passes, first_value = (unit % passes * lanes + lane % lanes) * 4;
        const int head = head_column / team, column = first_column + head_column - head * team;
        if (column >= p.n_columns) {
            continue;
        }
        const int warp = head_column / shape::columns, in_warp = head_column % shape::columns;
        float maximum = lowest_score, sum = 0.0f;
        float4 v = make_float4(0, 0, 0, 0);
        for (int i = 0; i < p.groups; i++) {
            const float2 state = layout.states(warp + i * warps)[in_warp];
            const float4 x = *reinterpret_cast<const float4 *>(layout.parked(warp + i * warps) +
                                                               in_warp * shape::parked_row + first_value);
            const float top = fmaxf(maximum, state.x), scale = exp2_fast(maximum - top),
                        weight = exp2_fast(state.x - top);
            maximum = top;
            sum = fmaf(state.y, weight, sum * scale);
            v.x = fmaf(x.x, weight, v.x * scale), v.y = fmaf(x.y, weight, v.y * scale);
            v.z = fmaf(x.z, weight, v.z * scale), v.w = fmaf(x.w, weight, v.w * scale);
        }
        if (p.splits == 1) {
            store_output<typename shape::plain>(p, blockIdx.z, first_head + head, column, first_value, v, maximum, sum);
        } else {
            const int64_t at =
                ((int64_t) (blockIdx.z * p.n_head_kv + first_head + head) * p.n_columns + column) * p.splits +
                blockIdx.x;
            *reinterpret_cast<float4 *>(p.partial + at * shape::head_dim + first_value) = v;
            if (first_value == 0) {
                *reinterpret_cast<float2 *>(p.partial_ml + 2 * at) = make_float2(maximum, sum);
            }
        }
    }
}

template <class shape> static __global__ void __launch_bounds__(rows_warps * 32, 1)
    attend_rows_kernel(const __grid_constant__ attend_params p) {
    extern __shared__ __align__(16) uint8_t shared[];
    const rows_layout<shape> layout = {shared};
    const int warp = threadIdx.x / 32, team = p.by_warps.divide(warp), part = warp - team * p.warps_per_head;
    const int group = p.by_heads.divide(team), head = team - group * p.heads_per_block;
    const bool active = group < p.groups;
    const int head_chunk = p.column_blocks == 1 ? blockIdx.y : blockIdx.y / p.column_blocks;
    const int first_head = head_chunk * p.heads_per_block;
    const int first_column = (blockIdx.y - head_chunk * p.column_blocks) * p.warps_per_head * shape::columns;
    const int column = first_column + part * shape::columns;
    // The group's share of the block's share of the cache, in units of 16 tokens.
    const int split = blockIdx.x, first_unit = split * p.split_units + min(split, p.split_rest),
              units = p.split_units + (split < p.split_rest ? 1 : 0);
    const int group_units = units / p.groups, group_rest = units - group_units * p.groups;
    const int begin = 16 * (first_unit + group * group_units + min(group, group_rest));
    const int end = active ? min(begin + 16 * (group_units + (group < group_rest ? 1 : 0)), p.n_kv) : 0;

    fill_pair_table(p.k.format, layout.k_table(p), threadIdx.x, rows_warps * 32, unsigned_bias);
    if (p.v.format != p.k.format) {
        fill_pair_table(p.v.format, layout.v_table(p), threadIdx.x, rows_warps * 32, unsigned_bias);
    }
    const int group_threads = p.heads_per_block * p.warps_per_head * 32;
    tile_ring ring;
    ring.base = layout.ring(p, group);
    ring.arrived = layout.barriers(p, group), ring.released = ring.arrived + tile_ring::slots;
    ring.pending = layout.pending(), ring.waited = !p.inputs_ready;
    ring.thread = threadIdx.x - group * group_threads, ring.threads = group_threads, ring.barrier_id = 1 + group;
    if (active && ring.thread == 0) {
        ring.init_barriers(p);
    }
    if (!p.inputs_ready) {
        wait_for_previous_kernel();
    }
    const pending_rows pending(p.pending);
    if (threadIdx.x == 0) {
        *layout.pending() = pending;
    }
    __syncthreads(); // the barriers are ready
    const int skipped = p.copy_rows ? first_head : 0, staged_head = p.copy_rows ? head : first_head + head;
    const char *k = p.k.data + blockIdx.z * p.k.stride_stream + skipped * p.k.stride_head;
    const char *v = p.v.data + blockIdx.z * p.v.stride_stream + skipped * p.v.stride_head;
    if (!pending.known() && !ring.waited) {
        wait_for_previous_kernel();
        ring.waited = true;
    }
    const int tokens = end - begin;
    if (active) {
        for (int i = 0; i < tile_ring::slots; i++) {
            ring.fetch(p, k, v, i, begin + i * shape::keys, min(shape::keys, tokens - i * shape::keys));
        }
    }
    prepare_columns<shape>(p, layout, first_head, first_column);
    __syncthreads();
    let_next_kernel_start();

    rows_state<shape> state = {};
#pragma unroll
    for (int m = 0; m < shape::tiles; m++) {
        state.maximum[m][0] = state.maximum[m][1] = lowest_score;
    }
    const uint4 *queries = reinterpret_cast<const uint4 *>(layout.queries(p, head)) +
                           part * shape::tiles * shape::steps * 32 + threadIdx.x % 32;
    const float *scales = layout.scales(p, head) + part * shape::columns;
    uint8_t *tile = layout.tiles(p, team);
    const int g = (threadIdx.x & 31) >> 2;
    const quarter_chunks<shape::head_dim> quarters(g, threadIdx.x & 3);
    const column_chunks<shape::head_dim> columns;
    rows_mask<shape> mask(p, column);
    const bool quick = mask.quick();
    if (quick && begin < end) {
        mask.look(p, begin);
    }
    tile_rows k_rows = staged_rows(p.k, k, staged_head), v_rows = staged_rows(p.v, v, staged_head);
    auto meet = [&]() { // all warps of the team
        if (p.warps_per_head == 1) {
            __syncwarp();
        } else {
            barrier(15 - team, p.warps_per_head * 32); // the first ones are the groups'
        }
    };
#pragma unroll 1
    for (int i = 0, first = begin; first < end; i++, first += shape::keys) {
        uint8_t *k_tile = tile + (p.tile_buffers == 2 ? (i & 1) * 2 * shape::tile_bytes : 0),
                *v_tile = k_tile + shape::tile_bytes;
        k_rows.shared = ring.take(p, i), v_rows.shared = k_rows.shared + p.slot_bytes;
        unpack<shape>(k_tile, p.k, layout.k_table(p), k_rows, end - first, part, p.warps_per_head);
        unpack<shape>(v_tile, p.v, layout.v_table(p), v_rows, end - first, part, p.warps_per_head);
        ring.release(i);
        meet();

        float s[shape::tiles][shape::keys / 8][4] = {}, factor[shape::tiles][2];
        rows_scores<shape>(s, queries, k_tile, quarters);
#pragma unroll
        for (int m = 0; m < shape::tiles; m++) {
            factor[m][0] = scales[16 * m + g], factor[m][1] = scales[16 * m + 8 + g];
        }
        const bool clear = mask.row == nullptr ? first + shape::keys <= end : quick && mask.clear();
        if (quick && first + shape::keys < end) {
            mask.look(p, first + shape::keys);
        }
        if (!clear || p.soft_cap != 0.0f || first + shape::keys > end) {
            limit_rows<shape>(s, factor, p, mask, first, end, column);
        }
        uint32_t probabilities[shape::tiles][shape::keys / 8][2];
        soften_rows<shape>(probabilities, s, factor, state);
        rows_values<shape>(state.out, probabilities, v_tile, columns);
        const int later = first + tile_ring::slots * shape::keys;
        ring.fetch(p, k, v, i + tile_ring::slots, later, min(shape::keys, end - later));
        if (p.tile_buffers == 1) {
            meet();
        }
    }
    if (!ring.waited) { // whoever comes next takes what this launch has waited for as done
        wait_for_previous_kernel();
    }
    __syncthreads(); // everything staged has been used: the memory now takes the warps' results
    if (active) {
        park_rows<shape>(p, layout, warp, state);
    }
    __syncthreads();
    merge_rows<shape>(p, layout, first_head, first_column);
}

} // namespace turbo_cuda
