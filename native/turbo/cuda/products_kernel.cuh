// The kernels of products.h. A warp takes a few rows of a matrix; what all of them read of the vector is in shared
// memory, 8 bits a value.
//
// What such a kernel waits for is memory, so everything it will read is asked for at once: where there is a copy engine
// (sm_90), a thread block has its rows brought to shared memory before anything else, and before the kernel ahead has
// ended unless that one chooses the rows.

#pragma once

#include "products.h"
#include "products_rows.cuh"

#include "unary.cuh"

#include <type_traits>

namespace turbo_cuda {

struct products_params : products_args {
    int stage_bytes;  // of shared memory for the block's rows of one matrix; 0: they are read where they lie
    int vector_bytes; // of shared memory for the vector
};
struct mix_params : mix_args {
    int stage_bytes, vector_bytes; // for an expert's rows; for all vectors
    int warps_each;                // warps that share an expert, `rows` rows a warp
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

// Of one vector, or of experts of several: grid y and z are the expert of a vector, and the vector.
template <ggml_type type, int rows, bool gated, bool staged>
static __global__ void __launch_bounds__(32 * product_warps, 2) vector_products_kernel(const products_params p) {
    using layout = vector_layout<type, staged>;
    constexpr int sums = gated ? 2 * rows : rows; // those of the gate behind the others
    extern __shared__ __align__(16) uint8_t shared_bytes[];
    let_next_kernel_start();
    const product_matrix &a = matrix_of_block(p);
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int block_row = ((int) blockIdx.x - a.first_block) * product_warps * rows, first = block_row + warp * rows;
    vector_part part(p.x + blockIdx.z * p.columns, p.columns);
    part.load_norm(p.norm);
    const row_stage<staged> stage(shared_bytes + p.vector_bytes, p.stage_bytes, 0);
    const auto fetch = [&](int expert) {
        if (threadIdx.x == 0) {
            const int64_t at = expert * a.expert_bytes + block_row * a.row_bytes;
            stage.fetch(a.weight + at, gated ? a.gate + at : nullptr,
                        min(product_warps * rows, a.rows - block_row) * (int) a.row_bytes);
        }
    };
    if (p.ids == nullptr) {
        fetch(0);
    }
    wait_for_previous_kernel();
    part.load();
    int expert = 0;
    if (p.ids != nullptr) {
        expert = p.ids[blockIdx.z * p.ids_stride + blockIdx.y];
        fetch(expert);
    }
    const float add = a.add != nullptr && lane < rows && first + lane < a.rows ? a.add[first + lane] : 0.0f;
    float scale = 1.0f;
    if (p.norm != nullptr) {
        scale = rsqrtf(block_sum(part.squares()) / p.columns + p.epsilon);
    }
    part.template quantize<layout>(shared_bytes, scale, p.norm,
                                   blockIdx.x == 0 && blockIdx.y == 0 ? p.normed : nullptr);
    __syncthreads();
    if (gated && p.next != nullptr) {
        fetch_share(p.next + expert * p.next_bytes, p.next_bytes);
    }
    if (first >= a.rows) {
        return;
    }
    stage.wait();
    const int64_t at = expert * a.expert_bytes + block_row * a.row_bytes;
    const char *row_of[sums];
#pragma unroll
    for (int r = 0; r < sums; r++) { // rows past the last are that again
        const char *own = r < rows ? stage.rows(0, a.weight + at) : stage.rows(1, a.gate + at);
        row_of[r] = own + (min(first + r % rows, a.rows - 1) - block_row) * (int) a.row_bytes;
    }
    float sum[sums];
    row_products<layout>(sum, row_of, shared_bytes, p.columns);
#pragma unroll
    for (int r = 0; r < rows; r++) {
        if (lane == r && first + r < a.rows) {
            const float result = gated ? sum[r] * gate_of(p.gated, sum[sums - rows + r]) : sum[r];
            a.out[(int64_t) (blockIdx.z * gridDim.y + blockIdx.y) * a.rows + first + r] = result + add;
        }
    }
}

// Of f32 matrices, as the choice of experts has them: a thread block a row.
static __global__ void __launch_bounds__(32 * product_warps) float_products_kernel(const products_params p) {
    let_next_kernel_start();
    const product_matrix &a = matrix_of_block(p);
    const int row = (int) blockIdx.x - a.first_block;
    vector_part part(p.x, p.columns), matrix(reinterpret_cast<const float *>(a.weight + row * a.row_bytes), p.columns);
    part.load_norm(p.norm);
    matrix.load();
    wait_for_previous_kernel();
    part.load();
    float scale = 1.0f;
    if (p.norm != nullptr) {
        scale = rsqrtf(block_sum(part.squares()) / p.columns + p.epsilon);
    }
    float sum = 0.0f;
    int step = 0;
    part.each(p.norm, [&](int at, const float (&from)[8], const float (&n)[8]) {
        float v[8], w[8];
        if (at < p.columns) {
            part.normalize(v, at, from, n, scale, p.norm != nullptr, blockIdx.x == 0 ? p.normed : nullptr);
            if (step >= vector_part::ahead) {
                vector_part::read(w, matrix.x + at);
            }
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum += v[i] * (step == 0 ? matrix.first[0][i] : step == 1 ? matrix.first[1][i] : w[i]);
            }
        }
        step++;
    });
    __syncthreads(); // block_sum's memory is read until here
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        a.out[row] = a.add != nullptr ? sum + a.add[row] : sum;
    }
}

// Some warps an expert; the block sums what they found for the same rows. Grid y is the vector.
template <ggml_type type, int rows, bool staged> static __global__ void __launch_bounds__(32 * product_warps, 2)
    expert_mix_kernel(const mix_params p) {
    using layout = vector_layout<type, staged>;
    constexpr int at_once = layout::pairs ? 4 : 2;
    extern __shared__ __align__(16) uint8_t shared_bytes[];
    __shared__ float part_sum[product_warps][rows];
    let_next_kernel_start();
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, block_rows = rows * p.warps_each,
              block_row = (int) blockIdx.x * block_rows;
    const int e = warp / p.warps_each, first = block_row + warp % p.warps_each * rows;
    const bool works = e < p.used && first < p.rows;
    const row_stage<staged> stage(shared_bytes + p.vector_bytes + e * p.stage_bytes, p.stage_bytes, e);
    vector_part part(p.x + (int64_t) blockIdx.y * p.used * p.columns, p.used * p.columns);
    wait_for_previous_kernel();
    part.load();
    const int own_expert = e < p.used ? e : 0;
    const int id = p.ids[blockIdx.y * p.ids_stride + own_expert];
    const char *matrix = p.weight + id * p.expert_bytes + block_row * p.row_bytes;
    if (lane == 0 && e < p.used && warp % p.warps_each == 0) {
        stage.fetch(matrix, nullptr, min(block_rows, p.rows - block_row) * (int) p.row_bytes);
    }
    const float weight = p.weights[blockIdx.y * p.used + own_expert] * (p.scale != nullptr ? p.scale[id] : 1.0f);
    const int row = block_row + (int) threadIdx.x;
    const bool sums = (int) threadIdx.x < block_rows && row < p.rows;
    const int64_t result = (int64_t) blockIdx.y * p.rows + row;
    const float add = p.add != nullptr && sums ? p.add[result] : 0.0f;
    part.template quantize<layout>(shared_bytes, 1.0f, nullptr, nullptr);
    __syncthreads();
    const auto mix = [&](auto lanes_a_row) {
        constexpr int lanes = decltype(lanes_a_row)::value, beside = 32 / lanes; // rows side by side in a warp
        const char *own = stage.rows(0, matrix);
        const uint8_t *y = shared_bytes + e * (layout::pairs ? p.columns / 64 * layout::pair_bytes
                                                             : p.columns / QK8_1 * (int) sizeof(block_q8_1));
#pragma unroll
        for (int r = 0; r < rows; r += at_once * beside) {
            const char *row_of[at_once];
#pragma unroll
            for (int i = 0; i < at_once; i++) {
                const int own_row = min(first + r + i * beside + lane / lanes, p.rows - 1) - block_row;
                row_of[i] = own + own_row * (int) p.row_bytes;
            }
            float sum[at_once];
            row_products<layout, at_once, lanes>(sum, row_of, y, p.columns);
#pragma unroll
            for (int i = 0; i < at_once; i++) {
                if (lane % lanes == i) {
                    part_sum[warp][r + i * beside + lane / lanes] = sum[i] * weight;
                }
            }
        }
    };
    if (works) {
        stage.wait();
        if (layout::pairs && p.columns <= 16 * 64) { // half a warp has lanes for all pairs of a row
            mix(std::integral_constant<int, 16>());
        } else {
            mix(std::integral_constant<int, 32>());
        }
    }
    __syncthreads();
    if (sums) {
        const int own = threadIdx.x / rows, r = threadIdx.x % rows;
        float total = part_sum[own][r];
        for (int i = 1; i < p.used; i++) {
            total += part_sum[i * p.warps_each + own][r];
        }
        p.out[result] = total + add;
    }
}

} // namespace turbo_cuda
