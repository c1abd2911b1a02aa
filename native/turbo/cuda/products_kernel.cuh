// The kernels of products.h. A warp takes `rows` rows of a matrix at a time; what all of them read of the vector is in
// shared memory, 8 bits a value.

#pragma once

#include "products.h"
#include "ptx.cuh"

#include "unary.cuh"
#include "vecdotq.cuh"

namespace turbo_cuda {

static constexpr int product_warps = 8;

struct products_params : products_args {};
struct mix_params : mix_args {};

// How llama.cpp multiplies a block of a type with blocks of the vector: values a block, lanes that share it, integers a
// lane takes, and the product of those.
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
#define TURBO_PRODUCT_TYPES(DO)                                                                                        \
    DO(Q4_0, q4_0) DO(Q4_1, q4_1) DO(Q5_0, q5_0) DO(Q5_1, q5_1) DO(Q8_0, q8_0) DO(Q2_K, q2_K) DO(Q3_K, q3_K)           \
    DO(Q4_K, q4_K) DO(Q5_K, q5_K) DO(Q6_K, q6_K) DO(IQ4_NL, iq4_nl) DO(IQ4_XS, iq4_xs) DO(MXFP4, mxfp4)
TURBO_PRODUCT_TYPES(TURBO_BLOCK_PRODUCT)
#undef TURBO_BLOCK_PRODUCT

// Sum over all threads of a block of product_warps warps.
static __device__ __forceinline__ float block_sum(float x) {
    __shared__ float sums[product_warps];
    x = warp_reduce_sum<32>(x);
    if ((threadIdx.x & 31) == 0) {
        sums[threadIdx.x / 32] = x;
    }
    __syncthreads();
    x = 0.0f;
#pragma unroll
    for (int i = 0; i < product_warps; i++) {
        x += sums[i];
    }
    return x;
}

// 1 over the root mean square of a vector of `columns` values (a multiple of 4), for all threads.
static __device__ __forceinline__ float inverse_rms(const float *x, int columns, float epsilon) {
    float sum = 0.0f;
#pragma unroll 4
    for (int i = 4 * threadIdx.x; i < columns; i += 4 * 32 * product_warps) {
        const float4 v = *reinterpret_cast<const float4 *>(x + i);
        sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    return rsqrtf(block_sum(sum) / columns + epsilon);
}

// Quantise `columns` values (a multiple of 32) as 8-bit blocks: `warps` warps, of which this is number `warp`, eight
// values a lane. They are multiplied with `scale` and, unless it is null, norm[i]; the results go to `normed` as well
// unless that is null.
static __device__ __forceinline__ void quantize_vector(block_q8_1 *y, const float *x, int columns, int warp, int warps,
                                                       float scale, const float *norm, float *normed) {
    const int lane = threadIdx.x & 31;
    for (int first = 256 * warp; first < columns; first += 256 * warps) {
        const int at = first + 8 * lane;
        float v[8] = {};
        if (at < columns) {
            const float4 low = *reinterpret_cast<const float4 *>(x + at),
                         high = *reinterpret_cast<const float4 *>(x + at + 4);
            v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
            v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
            if (norm != nullptr) {
#pragma unroll
                for (int i = 0; i < 8; i += 4) {
                    const float4 n = __ldg(reinterpret_cast<const float4 *>(norm + at + i));
                    v[i] *= scale * n.x, v[i + 1] *= scale * n.y, v[i + 2] *= scale * n.z, v[i + 3] *= scale * n.w;
                }
            }
            if (normed != nullptr) {
                *reinterpret_cast<float4 *>(normed + at) = make_float4(v[0], v[1], v[2], v[3]);
                *reinterpret_cast<float4 *>(normed + at + 4) = make_float4(v[4], v[5], v[6], v[7]);
            }
        }
        float largest = 0.0f, sum = 0.0f;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            largest = fmaxf(largest, fabsf(v[i]));
            sum += v[i];
        }
#pragma unroll
        for (int step = 1; step < 4; step *= 2) {
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        }
        const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
        uint32_t codes[2] = {};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            codes[i / 4] |= ((uint32_t) __float2int_rn(v[i] * inverse) & 0xffu) << 8 * (i % 4);
        }
        if (at < columns) {
            block_q8_1 &block = y[at / 32];
            uint32_t *words = reinterpret_cast<uint32_t *>(block.qs) + at % 32 / 4;
            words[0] = codes[0], words[1] = codes[1];
            if (lane % 4 == 0) {
                block.ds = make_half2(largest / 127.0f, sum);
            }
        }
    }
}

// Products of `rows` rows with the vector, complete in all lanes.
template <ggml_type type, int rows>
static __device__ __forceinline__ void row_products(float (&sum)[rows], const char *const (&row)[rows],
                                                    const block_q8_1 *y, int columns) {
    using product = block_product<type>;
    constexpr int at_once = rows >= 4 ? 1 : 4 / rows; // steps: four products on their way
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int r = 0; r < rows; r++) {
        sum[r] = 0.0f;
    }
    const int blocks = columns / product::values, at = product::step * (lane % product::lanes);
#pragma unroll at_once
    for (int block = lane / product::lanes; block < blocks; block += 32 / product::lanes) {
#pragma unroll
        for (int r = 0; r < rows; r++) {
            sum[r] += product::dot(row[r], y + block * (product::values / QK8_1), block, at);
        }
    }
#pragma unroll
    for (int r = 0; r < rows; r++) {
        sum[r] = warp_reduce_sum<32>(sum[r]);
    }
}

static __device__ __forceinline__ float gate_of(gate_activation activation, float x) {
    switch (activation) {
        case GATE_SILU: return ggml_cuda_op_silu_single(x);
        case GATE_GELU: return ggml_cuda_op_gelu_single(x);
        case GATE_RELU: return fmaxf(x, 0.0f);
        default: return 1.0f;
    }
}

// Weights do not depend on the kernel before: have them on their way while that one ends.
static __device__ __forceinline__ void fetch_ahead(const char *first, int64_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    for (int64_t at = 128 * (int) threadIdx.x; at < bytes; at += 128 * (int) blockDim.x) {
        prefetch_l2(first + at);
    }
#endif
}

static __device__ __forceinline__ const product_matrix &matrix_of_block(const products_params &p) {
    int m = 0;
#pragma unroll
    for (int i = 1; i < max_products; i++) {
        m += i < p.n && (int) blockIdx.x >= p.matrix[i].first_block;
    }
    return p.matrix[m];
}

template <ggml_type type, int rows, bool gated>
static __global__ void __launch_bounds__(32 * product_warps) vector_products_kernel(const products_params p) {
    extern __shared__ block_q8_1 vector_blocks[];
    let_next_kernel_start();
    const product_matrix &a = matrix_of_block(p);
    const int block_row = ((int) blockIdx.x - a.first_block) * product_warps * rows, warp = threadIdx.x / 32;
    if (p.ids == nullptr) {
        const int64_t first = block_row * a.row_bytes,
                      bytes = min(product_warps * rows, a.rows - block_row) * a.row_bytes;
        fetch_ahead(a.weight + first, bytes);
        if (gated) {
            fetch_ahead(a.gate + first, bytes);
        }
    }
    wait_for_previous_kernel();
    const int64_t expert = p.ids != nullptr ? p.ids[blockIdx.y] * a.expert_bytes : 0;
    const float scale = p.norm != nullptr ? inverse_rms(p.x, p.columns, p.epsilon) : 1.0f;
    quantize_vector(vector_blocks, p.x, p.columns, warp, product_warps, scale, p.norm,
                    blockIdx.x == 0 && blockIdx.y == 0 ? p.normed : nullptr);
    __syncthreads();
    const int first = block_row + warp * rows;
    if (first >= a.rows) {
        return;
    }
    constexpr int sums = gated ? 2 * rows : rows; // those of the gate behind the others
    const char *row_of[sums];
#pragma unroll
    for (int r = 0; r < sums; r++) { // rows past the last are that again
        row_of[r] = (r < rows ? a.weight : a.gate) + expert + min(first + r % rows, a.rows - 1) * a.row_bytes;
    }
    float sum[sums];
    row_products<type>(sum, row_of, vector_blocks, p.columns);
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int r = 0; r < rows; r++) {
        const int row = first + r;
        if (lane == r && row < a.rows) {
            float result = gated ? sum[r] * gate_of(p.gated, sum[sums - rows + r]) : sum[r];
            if (a.add != nullptr) {
                result += a.add[row];
            }
            a.out[(int64_t) blockIdx.y * a.rows + row] = result;
        }
    }
}

// Of f32 matrices, as the choice of experts has them: a thread block a row.
static __global__ void __launch_bounds__(32 * product_warps) float_products_kernel(const products_params p) {
    let_next_kernel_start();
    const product_matrix &a = matrix_of_block(p);
    const int row = (int) blockIdx.x - a.first_block;
    const float *weights = reinterpret_cast<const float *>(a.weight + row * a.row_bytes);
    fetch_ahead(reinterpret_cast<const char *>(weights), p.columns * (int64_t) sizeof(float));
    wait_for_previous_kernel();
    const float scale = p.norm != nullptr ? inverse_rms(p.x, p.columns, p.epsilon) : 1.0f;
    float sum = 0.0f;
#pragma unroll 2
    for (int i = 4 * threadIdx.x; i < p.columns; i += 4 * 32 * product_warps) {
        const float4 w = __ldg(reinterpret_cast<const float4 *>(weights + i));
        float4 v = *reinterpret_cast<const float4 *>(p.x + i);
        if (p.norm != nullptr) {
            const float4 n = __ldg(reinterpret_cast<const float4 *>(p.norm + i));
            v.x *= scale * n.x, v.y *= scale * n.y, v.z *= scale * n.z, v.w *= scale * n.w;
        }
        if (p.normed != nullptr && blockIdx.x == 0) {
            *reinterpret_cast<float4 *>(p.normed + i) = v;
        }
        sum += w.x * v.x + w.y * v.y + w.z * v.z + w.w * v.w;
    }
    __syncthreads(); // block_sum's memory is read until here
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        a.out[row] = a.add != nullptr ? sum + a.add[row] : sum;
    }
}

// A warp an expert; the block sums what its warps found for the same rows.
template <ggml_type type, int rows>
static __global__ void __launch_bounds__(32 * max_mixed_experts) expert_mix_kernel(const mix_params p) {
    extern __shared__ block_q8_1 vector_blocks[];
    __shared__ float part[max_mixed_experts][rows];
    let_next_kernel_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, first = (int) blockIdx.x * rows;
    block_q8_1 *y = vector_blocks + warp * (p.columns / QK8_1);
    wait_for_previous_kernel();
    const char *matrix = p.weight + p.ids[warp] * p.expert_bytes, *row_of[rows];
#pragma unroll
    for (int r = 0; r < rows; r++) {
        row_of[r] = matrix + min(first + r, p.rows - 1) * p.row_bytes;
    }
    quantize_vector(y, p.x + (int64_t) warp * p.columns, p.columns, 0, 1, 1.0f, nullptr, nullptr);
    __syncwarp();
    float sum[rows];
    row_products<type>(sum, row_of, y, p.columns);
#pragma unroll
    for (int r = 0; r < rows; r++) {
        if (lane == r) {
            part[warp][r] = sum[r] * p.weights[warp];
        }
    }
    __syncthreads();
    const int row = first + (int) threadIdx.x;
    if (threadIdx.x < rows && row < p.rows) {
        float total = part[0][threadIdx.x];
        for (int e = 1; e < p.used; e++) {
            total += part[e][threadIdx.x];
        }
        p.out[row] = p.add != nullptr ? total + p.add[row] : total;
    }
}

} // namespace turbo_cuda
