// What the kernels of products_kernel.cuh are made of: the vector, quantised in shared memory; rows of a matrix,
// brought there; and the products of both.

#pragma once

#include "ptx.cuh"

#include "vecdotq.cuh"

namespace turbo_cuda {

static constexpr int product_warps = 16;

// ---- rows of a matrix
// ---------------------------------------------------------------------------------------------

// How llama.cpp multiplies a block of a type with blocks of the vector: values a block, integers a lane takes, lanes
// that share a block, and the product of those.
template <ggml_type type> struct block_product;
#define TURBO_BLOCK_PRODUCT(TYPE, NAME)                                                                                \
    template <> struct block_product<GGML_TYPE_##TYPE> {                                                               \
        static constexpr int values = ggml_cuda_type_traits<GGML_TYPE_##TYPE>::qk;                                     \
        static constexpr int step = VDR_##TYPE##_Q8_1_MMVQ;                                                            \
        static constexpr int lanes = ggml_cuda_type_traits<GGML_TYPE_##TYPE>::qi / step;                               \
        static __device__ __forceinline__ float dot(const void *row, const block_q8_1 *y, int block, int at) {         \
            return vec_dot_##NAME##_q8_1(row, y, block, at);                                                           \
        }                                                                                                              \
    };
TURBO_PRODUCT_TYPES(TURBO_BLOCK_PRODUCT)
#undef TURBO_BLOCK_PRODUCT

// Neighbouring rows of one matrix, or of two, in shared memory (staged) or where they lie. A thread block has one such
// place or several.
template <bool staged> struct row_stage {
    uint8_t *bytes;
    int size, slot; // of one matrix's part; which place of the block

    __device__ __forceinline__ row_stage(uint8_t *bytes_, int size_, int slot_)
        : bytes(bytes_), size(size_), slot(slot_) {}

    // Ask for `n` bytes of one or both (null: one); by one thread. A copy costs its thread 150 cycles, so there is one
    // a matrix. Whole 16-byte units are copied, up to 15 bytes on either side come along: allocations of matrices are
    // padded to more.
    __device__ __forceinline__ void fetch(const char *first, const char *second, int n) const {
#ifdef TURBO_BULK_COPY
        if (staged) {
            const int total[2] = {units(first, n), second != nullptr ? units(second, n) : 0};
            phase_init(phase(), 1);
            phases_ready();
            phase_arrive_with_bytes(phase(), total[0] + total[1]);
            bulk_copy(bytes, first - skew(first), total[0], phase());
            if (second != nullptr) {
                bulk_copy(bytes + size, second - skew(second), total[1], phase());
            }
        }
#endif
    }
    // Until they have come; after a barrier of the block behind fetch().
    __device__ __forceinline__ void wait() const {
#ifdef TURBO_BULK_COPY
        if (staged) {
            phase_wait(phase(), 0);
        }
#endif
    }
    // Where the rows are that lie at `from`, those of matrix `which`.
    __device__ __forceinline__ const char *rows(int which, const char *from) const {
        return staged ? reinterpret_cast<const char *>(bytes) + which * size + skew(from) : from;
    }

private:
    static __device__ __forceinline__ int skew(const char *p) { return (int) (reinterpret_cast<uintptr_t>(p) & 15); }
    static __device__ __forceinline__ int units(const char *p, int n) { return (skew(p) + n + 15) / 16 * 16; }
    __device__ __forceinline__ uint64_t *phase() const {
        __shared__ uint64_t phases[product_warps];
        return phases + slot;
    }
};

// ---- the vector
// ---------------------------------------------------------------------------------------------------

// Types whose blocks are not a whole number of words, but two are, and an odd number: a lane takes a pair of blocks of
// 32 values, and lanes meet no bank conflicts.
static constexpr bool goes_in_pairs(ggml_type type) {
    return type == GGML_TYPE_Q4_0 || type == GGML_TYPE_Q8_0;
}

template <int words> static __device__ __forceinline__ void read_words(uint32_t (&x)[words], const uint32_t *from) {
#pragma unroll
    for (int i = 0; i < words; i++) {
        x[i] = from[i];
    }
}
// The half in the low bits.
static __device__ __forceinline__ float low_half(uint32_t bits) {
    return __half2float(__ushort_as_half((unsigned short) bits));
}
// c plus the product of four unsigned and four signed bytes.
static __device__ __forceinline__ int dot_u8_s8(uint32_t a, uint32_t b, int c) {
    int d;
    asm("dp4a.u32.s32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// Product of a pair of blocks (x) with the vector's. y: codes of the pair; ds: scale and sum of each block of it.
template <ggml_type type> struct pair_product;
template <> struct pair_product<GGML_TYPE_Q4_0> {
    static constexpr int words = 9;
    static __device__ __forceinline__ float dot(const uint32_t (&x)[words], const uint32_t (&y)[16],
                                                const float2 (&ds)[2]) {
        int sum[2] = {};
        int high[2] = {}; // sixteen times the sum
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t first = __funnelshift_r(x[i], x[i + 1], 16), second = x[5 + i];
            sum[0] = dot_u8_s8(first & 0x0f0f0f0fu, y[i], sum[0]);
            high[0] = dot_u8_s8(first & 0xf0f0f0f0u, y[4 + i], high[0]);
            sum[1] = dot_u8_s8(second & 0x0f0f0f0fu, y[8 + i], sum[1]);
            high[1] = dot_u8_s8(second & 0xf0f0f0f0u, y[12 + i], high[1]);
        }
        const auto block = [&](int b) { return (sum[b] + high[b] * 0.0625f) * ds[b].x - 8.0f * ds[b].y; };
        return low_half(x[0]) * block(0) + low_half(x[4] >> 16) * block(1);
    }
};
template <> struct pair_product<GGML_TYPE_Q8_0> {
    static constexpr int words = 17;
    static __device__ __forceinline__ float dot(const uint32_t (&x)[words], const uint32_t (&y)[16],
                                                const float2 (&ds)[2]) {
        int sum[2] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum[0] = __dp4a((int) __funnelshift_r(x[i], x[i + 1], 16), (int) y[i], sum[0]);
            sum[1] = __dp4a((int) x[9 + i], (int) y[8 + i], sum[1]);
        }
        return low_half(x[0]) * (sum[0] * ds[0].x) + low_half(x[8] >> 16) * (sum[1] * ds[1].x);
    }
};

// Where the codes of the vector are in shared memory, and how a row is multiplied with them: as llama.cpp's blocks, ...
template <ggml_type type_, bool staged> struct vector_layout {
    static constexpr ggml_type type = type_;
    static constexpr bool pairs = staged && goes_in_pairs(type);
    // ... or in pairs of blocks, 16 words of codes and two of scales, padded to 20 words for the same reason.
    static constexpr int pair_bytes = 80;

    // Where a block begins, or a pair: of the value that is its first.
    static __host__ __device__ constexpr int start(int value) {
        return pairs ? value / 64 * pair_bytes : value / QK8_1 * (int) sizeof(block_q8_1);
    }
    // Of a vector of whole blocks, or pairs; what comes behind it begins at a multiple of 16.
    static __host__ __device__ constexpr int bytes(int columns) { return (start(columns) + 15) / 16 * 16; }
    static __device__ __forceinline__ uint32_t *codes(uint8_t *y, int value) {
        return pairs ? reinterpret_cast<uint32_t *>(y + value / 64 * pair_bytes + value % 64)
                     : reinterpret_cast<uint32_t *>(reinterpret_cast<block_q8_1 *>(y)[value / 32].qs) + value % 32 / 4;
    }
    static __device__ __forceinline__ half2 *scale_and_sum(uint8_t *y, int value) {
        return pairs ? reinterpret_cast<half2 *>(y + value / 64 * pair_bytes + 64) + value / 32 % 2
                     : &reinterpret_cast<block_q8_1 *>(y)[value / 32].ds;
    }
};

// A warp's part of a vector of `columns` values (a multiple of 32): eight values a lane, every 256 values a warp.
struct vector_part {
    static constexpr int ahead = 2; // steps that are asked for long before they are used
    const float *x;
    int columns, begin;
    float first[ahead][8], norm_first[8];

    static constexpr int step = 256 * product_warps;

    __device__ __forceinline__ vector_part(const float *x_, int columns_)
        : x(x_), columns(columns_), begin(8 * (int) threadIdx.x) {}

    static __device__ __forceinline__ void read(float (&v)[8], const float *from) {
        const float4 low = *reinterpret_cast<const float4 *>(from), high = *reinterpret_cast<const float4 *>(from + 4);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
    }
    __device__ __forceinline__ void load() {
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            if (begin + i * step < columns) {
                read(first[i], x + begin + i * step);
            }
        }
    }
    __device__ __forceinline__ void load_norm(const float *norm) {
        if (norm != nullptr) {
            if (begin < columns) {
                read(norm_first, norm + begin);
            }
            for (int at = begin + step; at < columns; at += step) {
                prefetch_l2(norm + at);
            }
        }
    }
    // f(place, values, values of the norm), eight at a time; all lanes of a warp that has any.
    template <class F> __device__ __forceinline__ void each(const float *norm, const F &f) const {
        const int warp_begin = begin - 8 * (int) (threadIdx.x & 31);
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int at = begin + i * step;
            if (warp_begin + i * step < columns) {
                if (i == 0 || norm == nullptr || at >= columns) {
                    f(at, first[i], norm_first);
                } else {
                    float n[8];
                    read(n, norm + at);
                    f(at, first[i], n);
                }
            }
        }
        for (int at = begin + ahead * step; at - begin + warp_begin < columns; at += step) {
            float v[8] = {}, n[8] = {};
            if (at < columns) {
                read(v, x + at);
                if (norm != nullptr) {
                    read(n, norm + at);
                }
            }
            f(at, v, n);
        }
    }
    __device__ __forceinline__ float squares() const {
        float sum = 0.0f;
        each(nullptr, [&](int at, const float (&v)[8], const float (&)[8]) {
            if (at < columns) {
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    sum += v[i] * v[i];
                }
            }
        });
        return sum;
    }
    // x = v * scale * n, if there is a norm, else v; kept in `normed` unless that is null.
    static __device__ __forceinline__ void normalize(float (&x)[8], int at, const float (&v)[8], const float (&n)[8],
                                                     float scale, bool norm, float *normed) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
            x[i] = norm ? v[i] * (scale * n[i]) : v[i];
        }
        if (normed != nullptr) {
            *reinterpret_cast<float4 *>(normed + at) = make_float4(x[0], x[1], x[2], x[3]);
            *reinterpret_cast<float4 *>(normed + at + 4) = make_float4(x[4], x[5], x[6], x[7]);
        }
    }
    // Eight values of a block of 32, whose other ones the lanes beside have, into shared memory. `real`: they are
    // wanted.
    template <class layout>
    static __device__ __forceinline__ void quantize_eight(uint8_t *y, int at, const float (&v)[8], bool real) {
        float largest = 0.0f, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            largest = fmaxf(largest, fabsf(v[i]));
            sum += v[i];
        }
#pragma unroll
        for (int lanes = 1; lanes < 4; lanes *= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lanes));
            sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
        }
        const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
        uint32_t codes[2] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            codes[i / 4] |= ((uint32_t) __float2int_rn(v[i] * inverse) & 0xffu) << 8 * (i % 4);
        }
        if (real) {
            uint32_t *words = layout::codes(y, at);
            words[0] = codes[0], words[1] = codes[1];
            if (at % 32 == 0) {
                *layout::scale_and_sum(y, at) = make_half2(largest / 127.0f, sum);
            }
        }
    }
    // Normalised, quantised in blocks of 32 (four lanes), into shared memory.
    template <class layout>
    __device__ __forceinline__ void quantize(uint8_t *y, float scale, const float *norm, float *normed) const {
        each(norm, [&](int at, const float (&from)[8], const float (&n)[8]) {
            float v[8] = {};
            if (at < columns) {
                normalize(v, at, from, n, scale, norm != nullptr, normed);
            }
            quantize_eight<layout>(y, at, v, at < columns);
        });
    }
};

// A pair of the vector's blocks.
static __device__ __forceinline__ void read_pair(uint32_t (&codes)[16], float2 (&scales)[2], const uint8_t *at) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 four = reinterpret_cast<const uint4 *>(at)[i];
        codes[4 * i] = four.x, codes[4 * i + 1] = four.y, codes[4 * i + 2] = four.z, codes[4 * i + 3] = four.w;
    }
    const half2 *ds = reinterpret_cast<const half2 *>(at + 64);
    scales[0] = __half22float2(ds[0]), scales[1] = __half22float2(ds[1]);
}

// ---- products
// ------------------------------------------------------------------------------------------------------

// Products of `rows` rows with the vector, complete in all lanes that share a row: all, or half a warp (pairs only).
template <class layout, int rows, int lanes = 32> static __device__ __forceinline__ void
row_products(float (&sum)[rows], const char *const (&row)[rows], const uint8_t *y, int columns) {
    const int lane = threadIdx.x % lanes;
#pragma unroll
    for (int r = 0; r < rows; r++) {
        sum[r] = 0.0f;
    }
    if constexpr (layout::pairs) {
        using product = pair_product<layout::type>;
        for (int pair = lane; 64 * pair < columns; pair += lanes) {
            const uint8_t *at = y + pair * layout::pair_bytes;
            uint32_t codes[16];
            float2 scales[2];
            read_pair(codes, scales, at);
#pragma unroll
            for (int r = 0; r < rows; r++) {
                uint32_t x[product::words];
                read_words(x, reinterpret_cast<const uint32_t *>(row[r]) + pair * product::words);
                sum[r] += product::dot(x, codes, scales);
            }
        }
    } else {
        using product = block_product<layout::type>;
        constexpr int at_once = rows >= 4 ? 1 : 4 / rows; // steps: four products on their way
        const block_q8_1 *blocks_of_y = reinterpret_cast<const block_q8_1 *>(y);
        const int blocks = columns / product::values, at = product::step * (lane % product::lanes);
#pragma unroll at_once
        for (int block = lane / product::lanes; block < blocks; block += 32 / product::lanes) {
#pragma unroll
            for (int r = 0; r < rows; r++) {
                sum[r] += product::dot(row[r], blocks_of_y + block * (product::values / QK8_1), block, at);
            }
        }
    }
#pragma unroll
    for (int r = 0; r < rows; r++) {
        sum[r] = warp_reduce_sum<lanes>(sum[r]);
    }
}

} // namespace turbo_cuda
