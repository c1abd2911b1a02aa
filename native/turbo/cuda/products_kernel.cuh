// The kernels of products.h. A warp takes a few rows of a matrix; what all of them read of the vector is in shared memory,
// 8 bits a value.
//
// What such a kernel waits for is memory, so everything it will read is asked for at once: where there is a copy engine
// (sm_90), a warp has its rows brought to shared memory before anything else, and before the kernel ahead has ended unless
// that one chooses the rows.

#pragma once

#include "products.h"
#include "products_rows.cuh"

#include "unary.cuh"

#include <type_traits>

namespace turbo_cuda {

struct products_params : products_args {
    int stage_bytes;  // of shared memory for a warp's rows of one matrix; 0: they are read where they lie
    int vector_bytes; // of shared memory for the vector
};
struct mix_params : mix_args {
    int stage_bytes, vector_bytes; // for a warp
};

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

static __device__ __forceinline__ float gate_of(gate_activation activation, float x) {
    switch (activation) {
        case GATE_SILU: return ggml_cuda_op_silu_single(x);
        case GATE_GELU: return ggml_cuda_op_gelu_single(x);
        case GATE_RELU: return fmaxf(x, 0.0f);
        default: return 1.0f;
    }
}

// The experts that `choice` takes, for all threads of a block: returns the one of place `slot`. The grid's first block
// writes the results.
static __device__ __forceinline__ int choose_experts(const expert_choice &choice, int used, int slot) {
    __shared__ __align__(16) float logits[max_chosen_from];
    __shared__ int chosen[max_chosen];
    const int e = threadIdx.x;
    const float own = e < choice.experts ? choice.logits[e] : -INFINITY;
    static_assert(max_chosen_from == 32 * product_warps, "a thread an expert");
    logits[e] = own;
    if (e < used) {
        chosen[e] = e; // places that no number takes, where some are no numbers
    }
    __syncthreads();
    int before = 0;
    for (int i = 0; i < choice.experts; i += 4) {
        const float4 v = *reinterpret_cast<const float4 *>(logits + i);
        before += (v.x > own) + (v.y > own) + (v.z > own) + (v.w > own);
        before += (v.x == own && i < e) + (v.y == own && i + 1 < e) + (v.z == own && i + 2 < e) +
                  (v.w == own && i + 3 < e);
    }
    if (e < choice.experts && before < used) {
        chosen[before] = e;
    }
    __syncthreads();
    if (blockIdx.x == 0 && blockIdx.y == 0) {
        const float largest = logits[chosen[0]], total = block_sum(expf(own - largest));
        if (e < 32) {
            float weight = e < used ? expf(logits[chosen[e < used ? e : 0]] - largest) / total : 0.0f;
            if (choice.divided) {
                weight /= fminf(fmaxf(warp_reduce_sum<32>(weight), choice.least), choice.most);
            }
            if (e < used) {
                choice.ids[e] = chosen[e];
                choice.weights[e] = weight * choice.scale;
            }
        }
    }
    return chosen[slot];
}

// A thread block's share of a matrix of which the next kernel will read all.
static __device__ __forceinline__ void fetch_share(const char *matrix, int64_t bytes) {
    const int64_t share = (bytes / gridDim.x + 127) / 128 * 128, first = blockIdx.x * share,
                  end = min(first + share, bytes);
    for (int64_t at = first + 128 * (int) threadIdx.x; at < end; at += 128 * (int) blockDim.x) {
        prefetch_l2(matrix + at);
    }
}

static __device__ __forceinline__ const product_matrix &matrix_of_block(const products_params &p) {
    int m = 0;
#pragma unroll
    for (int i = 1; i < max_products; i++) {
        m += i < p.n && (int) blockIdx.x >= p.matrix[i].first_block;
    }
    return p.matrix[m];
}

template <ggml_type type, int rows, bool gated, bool staged>
static __global__ void __launch_bounds__(32 * product_warps) vector_products_kernel(const products_params p) {
    using layout = vector_layout<type, staged>;
    constexpr int sums = gated ? 2 * rows : rows; // those of the gate behind the others
    extern __shared__ __align__(16) uint8_t shared_bytes[];
    let_next_kernel_start();
    const product_matrix &a = matrix_of_block(p);
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int first = (((int) blockIdx.x - a.first_block) * product_warps + warp) * rows;
    const bool by_id = p.ids != nullptr || p.choice.logits != nullptr;
    vector_part part(p.x, p.columns, warp, product_warps);
    part.load_norm(p.norm);
    row_stage<staged> stage(shared_bytes + p.vector_bytes + warp * (gated ? 2 : 1) * p.stage_bytes, p.stage_bytes);
    const auto fetch = [&](int64_t offset) {
        const int64_t at = offset + first * a.row_bytes;
        const int bytes = min(rows, a.rows - first) * (int) a.row_bytes; // a negative one: nothing to do
        stage.fetch(a.weight + at, gated ? a.gate + at : nullptr, bytes);
    };
    if (!by_id) {
        fetch(0);
    }
    wait_for_previous_kernel();
    if (by_id) {
        const int expert = p.choice.logits != nullptr ? choose_experts(p.choice, p.used, blockIdx.y) : p.ids[blockIdx.y];
        fetch(expert * a.expert_bytes);
        if (p.next != nullptr) {
            fetch_share(p.next + expert * p.next_bytes, p.next_bytes);
        }
    }
    const float add = a.add != nullptr && lane < rows && first + lane < a.rows ? a.add[first + lane] : 0.0f;
    part.load();
    float scale = 1.0f;
    if (p.norm != nullptr) {
        scale = rsqrtf(block_sum(part.squares()) / p.columns + p.epsilon);
    }
    part.template quantize<layout>(shared_bytes, scale, p.norm,
                                   blockIdx.x == 0 && blockIdx.y == 0 ? p.normed : nullptr);
    __syncthreads();
    if (first >= a.rows) {
        return;
    }
    stage.wait();
    const char *row_of[sums];
#pragma unroll
    for (int r = 0; r < sums; r++) { // rows past the last are that again
        row_of[r] = stage.matrix(r >= rows) + min(r % rows, a.rows - 1 - first) * a.row_bytes;
    }
    float sum[sums];
    row_products<layout>(sum, row_of, shared_bytes, p.columns);
#pragma unroll
    for (int r = 0; r < rows; r++) {
        if (lane == r && first + r < a.rows) {
            const float result = gated ? sum[r] * gate_of(p.gated, sum[sums - rows + r]) : sum[r];
            a.out[(int64_t) blockIdx.y * a.rows + first + r] = result + add;
        }
    }
}

// Of f32 matrices, as the choice of experts has them: a thread block a row.
static __global__ void __launch_bounds__(32 * product_warps) float_products_kernel(const products_params p) {
    let_next_kernel_start();
    const product_matrix &a = matrix_of_block(p);
    const int row = (int) blockIdx.x - a.first_block, warp = threadIdx.x / 32;
    const float *weights = reinterpret_cast<const float *>(a.weight + row * a.row_bytes);
    vector_part part(p.x, p.columns, warp, product_warps), matrix(weights, p.columns, warp, product_warps);
    part.load_norm(p.norm);
    matrix.load();
    wait_for_previous_kernel();
    part.load();
    float scale = 1.0f;
    if (p.norm != nullptr) {
        scale = rsqrtf(block_sum(part.squares()) / p.columns + p.epsilon);
    }
    float sum = 0.0f;
    part.each([&](int at, float(&v)[8]) {
        part.normalize(at, v, scale, p.norm, blockIdx.x == 0 ? p.normed : nullptr);
        float w[8];
        matrix.get(at, w);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            sum += w[i] * v[i];
        }
    });
    __syncthreads(); // block_sum's memory is read until here
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        a.out[row] = a.add != nullptr ? sum + a.add[row] : sum;
    }
}

// A warp an expert; the block sums what its warps found for the same rows.
template <ggml_type type, int rows, bool staged>
static __global__ void __launch_bounds__(32 * max_mixed_experts) expert_mix_kernel(const mix_params p) {
    using layout = vector_layout<type, staged>;
    constexpr int at_once = layout::pairs ? 4 : 2;
    extern __shared__ __align__(16) uint8_t shared_bytes[];
    __shared__ float part_sum[max_mixed_experts][rows];
    let_next_kernel_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, first = (int) blockIdx.x * rows;
    uint8_t *own = shared_bytes + warp * (p.vector_bytes + p.stage_bytes);
    row_stage<staged> stage(own + p.vector_bytes, p.stage_bytes);
    vector_part part(p.x + (int64_t) warp * p.columns, p.columns, 0, 1);
    wait_for_previous_kernel();
    stage.fetch(p.weight + p.ids[warp] * p.expert_bytes + first * p.row_bytes, nullptr,
                min(rows, p.rows - first) * (int) p.row_bytes);
    part.load();
    const float weight = p.weights[warp];
    const int row = first + (int) threadIdx.x;
    const float add = p.add != nullptr && threadIdx.x < rows && row < p.rows ? p.add[row] : 0.0f;
    part.template quantize<layout>(own, 1.0f, nullptr, nullptr);
    __syncwarp();
    stage.wait();
    const auto mix = [&](auto lanes_a_row) {
        constexpr int lanes = decltype(lanes_a_row)::value, beside = 32 / lanes; // rows side by side in a warp
        const int own_row = lane / lanes;
#pragma unroll
        for (int r = 0; r < rows; r += at_once * beside) {
            const char *row_of[at_once];
#pragma unroll
            for (int i = 0; i < at_once; i++) {
                row_of[i] = stage.matrix(false) + min(r + i * beside + own_row, p.rows - 1 - first) * p.row_bytes;
            }
            float sum[at_once];
            row_products<layout, at_once, lanes>(sum, row_of, own, p.columns);
#pragma unroll
            for (int i = 0; i < at_once; i++) {
                if (lane % lanes == i) {
                    part_sum[warp][r + i * beside + own_row] = sum[i] * weight;
                }
            }
        }
    };
    if (layout::pairs && p.columns <= 16 * 64) { // half a warp has lanes for all pairs of a row
        mix(std::integral_constant<int, 16>());
    } else {
        mix(std::integral_constant<int, 32>());
    }
    __syncthreads();
    if (threadIdx.x < rows && row < p.rows) {
        float total = part_sum[0][threadIdx.x];
        for (int e = 1; e < p.used; e++) {
            total += part_sum[e][threadIdx.x];
        }
        p.out[row] = total + add;
    }
}

} // namespace turbo_cuda
