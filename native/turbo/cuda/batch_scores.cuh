// What attend_batch.cuh does with queries and scores: queries as bytes, the mask, references of exponents.

#pragma once

#include "batch_stage.cuh"

namespace turbo_cuda {

#ifdef TURBO_WARPGROUP_PRODUCTS

// Store a rotated query, of which each lane of half a warp has eight neighbouring values, as signed bytes in the order
// of key_operand: the four bytes of register h of a quarter's part are at 32 * part + 16 * h + 4 * quarter.
static __device__ __forceinline__ void store_query_bytes(uint8_t *queries, int column, const float (&x)[8],
                                                         float to_int) {
    const int lane = threadIdx.x & 15, quarter = lane / 4, part = lane % 4;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        uint32_t rounded[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            // Adding 1.5 * 2^23 leaves the rounded integer in the low mantissa bits.
            rounded[j] = __float_as_uint(fmaf(x[4 * h + j], to_int, 12582912.0f));
        }
        const int chunk = 2 * part + h;
        *reinterpret_cast<uint32_t *>(queries + column * 128 + ((chunk ^ column % 8) << 4) + 4 * quarter) =
            gather_bytes<0>(rounded);
    }
}

// The mask of a warp's 16 tokens. Most tiles of a long cache are not masked at all: whether the next one is, is asked
// while this one is being worked on. What comes goes to shared memory, registers are short.
struct batch_mask {
    static constexpr int rows_at_once = 16; // 16 bytes a lane
    const char *next;                       // from where this lane fetches for the tile it looks at next; null: nothing
    uint32_t ahead;                         // where to, in shared memory
    bool quick;

    static __device__ __forceinline__ const char *row(const attend_params &p, int column) {
        return p.mask + blockIdx.z * p.mask_stride_stream + p.by_gqa.divide(column) * p.mask_stride_row;
    }
    __device__ __forceinline__ batch_mask(const attend_params &p, int column, int columns, int begin, int warp,
                                          uint32_t shared)
        : next(nullptr), ahead(shared), quick(false) {
        store_shared_16(ahead, make_uint4(0, 0, 0, 0));
        if (p.mask != nullptr) {
            const int last = min(column + columns, p.n_columns) - 1, lane = threadIdx.x & 31,
                      rows = p.by_gqa.divide(last) - p.by_gqa.divide(column) + 1;
            const char *first = row(p, column);
            quick = rows <= rows_at_once && ((reinterpret_cast<uintptr_t>(first) | p.mask_stride_row) & 15) == 0;
            if (quick && lane / 2 < rows) {
                next = first + lane / 2 * p.mask_stride_row + (begin + 16 * warp + 8 * (lane & 1)) * 2;
            }
        }
    }
    // Ask for that of the tile from `first` on, tile by tile.
    __device__ __forceinline__ void look(const attend_params &p, int first) {
        if (next != nullptr && first + batch_keys <= p.n_kv) {
            copy_async_16(ahead, next);
            next += batch_keys * 2;
        }
    }
    // Is nothing of the warp's part of the tile masked that was looked at last?
    __device__ __forceinline__ bool clear() const {
        copy_async_wait_all();
        const uint4 x = load_shared_16(ahead);
        return !__any_sync(0xffffffffu, (x.x | x.y | x.z | x.w) != 0);
    }
};

// Running state of a warpgroup's columns 8n + 2t and 8n + 2t + 1: the exponent that their sums and outputs are relative
// to, the sum of the lane's tokens, and of chunk c of the output the values of value_of (i < 2) and those behind them.
template <class shape> struct batch_state {
    float reference[shape::tiles][2], sum[shape::tiles][2], out[2][shape::tiles][4];
};

// Probabilities times the scales of their values are halves, so they may not become too large: if one is more than
// most_probable, references move so that the largest is about 1 (exponents are compared as integers, in eighths). What
// is less than 2^-14 of that is less exact, what is less than 2^-25 is lost.
static constexpr float eighths = 8.0f, most_probable = 32768.0f;

// The column of a lane in show_largest, of the 2 * tiles that the eight lanes with its t have.
template <class shape> static __device__ __forceinline__ int own_column() {
    static_assert(shape::tiles <= 4, "one column a lane");
    const int lane = threadIdx.x & 31, mine = shape::tiles == 4
                                                  ? (lane >> 4 & 1) * 4 + (lane >> 3 & 1) * 2 + (lane >> 2 & 1)
                                                  : (lane >> 4 & 1) * 2 + (lane >> 3 & 1);
    return mine / 2 * 8 + 2 * (lane & 3) + mine % 2;
}
// Largest of each column over the warp's 16 tokens, to where it is kept, the lane's own column at `to`.
template <class shape>
static __device__ __forceinline__ void show_largest(const float (&y)[shape::tiles][4], uint32_t to) {
    constexpr int n = 2 * shape::tiles;
    const int lane = threadIdx.x & 31;
    float top[n];
#pragma unroll
    for (int i = 0; i < n; i++) {
        top[i] = fmaxf(y[i / 2][i % 2], y[i / 2][i % 2 + 2]);
    }
    // Halves of the eight lanes take over half of the columns, and so on until each has its own.
    int bit = 16;
#pragma unroll
    for (int keep = n / 2; keep > 0; keep /= 2, bit /= 2) {
        const bool upper = lane & bit;
#pragma unroll
        for (int i = 0; i < keep; i++) {
            const float sent = upper ? top[i] : top[keep + i];
            top[i] = fmaxf(upper ? top[keep + i] : top[i], __shfl_xor_sync(0xffffffffu, sent, bit));
        }
    }
    if (bit >= 4) {
        top[0] = fmaxf(top[0], __shfl_xor_sync(0xffffffffu, top[0], bit));
    }
    raise_shared(to, __float2int_ru(top[0] * eighths));
}

template <class shape> static __device__ __forceinline__ void clear_largest(uint32_t maxima) {
    if (threadIdx.x % 128 < shape::columns) {
        store_shared(maxima + threadIdx.x % 128 * 4, 0x80000000u);
    }
}

// The mask, the soft cap and the end of the cache on scores x of the tokens `token` and token + 8; `run`: where what
// their run adds to the lane's first columns lies, 0: it adds nothing.
template <class shape> static __device__ __noinline__ void
limit_batch(float (&x)[shape::tiles][4], const attend_params &p, int first_column, uint32_t run, int token, int end) {
    const int t = threadIdx.x & 3;
#pragma unroll 1
    for (int i = 0; i < 2 * shape::tiles; i++) {
        const int n = i / 2, c = i % 2, column = min(first_column + 8 * n + 2 * t + c, p.n_columns - 1);
        const __half *mask = p.mask == nullptr ? nullptr : reinterpret_cast<const __half *>(batch_mask::row(p, column));
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float s = x[n][2 * h + c];
            if (p.soft_cap != 0.0f) {
                const float2 add = run == 0 ? make_float2(0.0f, 0.0f) : load_shared_floats(run + 32 * n);
                s = p.soft_cap * tanhf(s + (c == 0 ? add.x : add.y));
            }
            const int at = token + 8 * h;
            if (at >= end) {
                s = -INFINITY;
            } else if (mask != nullptr) {
                s += log2_e * __half2float(mask[at]);
            }
            x[n][2 * h + c] = s;
        }
    }
}

// Move the references of columns whose largest exponents in a tile, in eighths from `largest` on, have grown beyond
// them.
template <class shape>
static __device__ __forceinline__ void move_references(uint32_t largest, batch_state<shape> &state) {
#pragma unroll
    for (int n = 0; n < shape::tiles; n++) {
        const int2 top = load_shared_ints(largest + 32 * n);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float exponent = (float) (c == 0 ? top.x : top.y) * (1.0f / eighths),
                        reference = fmaxf(exponent, state.reference[n][c]),
                        scale = exp2_fast(state.reference[n][c] - reference);
            state.reference[n][c] = reference;
            state.sum[n][c] *= scale;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                state.out[i / 2][n][i % 2 * 2 + c] *= scale;
            }
        }
    }
}
#endif

} // namespace turbo_cuda
