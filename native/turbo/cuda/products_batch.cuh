// The kernels of products.h for the few vectors of a short batch. As those for one (products_kernel.cuh), but all
// vectors lie in shared memory together, and of a row is multiplied with all of them what has been read once.

#pragma once

#include "products_kernel.cuh"

namespace turbo_cuda {

// The vectors as one row of values, of which each warp takes 256 at a time: those are of one vector.
template <int ahead> struct vectors_part {
    static constexpr int step = vector_part::step, most_chunks = (40 << 10) / batch_columns;
    const float *x;
    int columns, total, begin;
    float first[ahead][8]; // what is asked for at once; the rest is read where it is used

    __device__ __forceinline__ vectors_part(const products_params &p)
        : x(p.x), columns(p.columns), total(p.vectors * p.columns), begin(8 * (int) threadIdx.x) {}

    __device__ __forceinline__ void load() {
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            if (begin + i * step < total) {
                vector_part::read(first[i], x + begin + i * step);
            }
        }
    }
    // f(place in x, values), eight at a time.
    template <class F> __device__ __forceinline__ void each(const F &f) const {
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            if (begin + i * step < total) {
                f(begin + i * step, first[i]);
            }
        }
#pragma unroll 1
        for (int at = begin + ahead * step; at < total; at += step) {
            float v[8];
            vector_part::read(v, x + at);
            f(at, v);
        }
    }
    // Sums of squares of the warp's values, one for each 256 of x.
    __device__ __forceinline__ void squares(float *sums) const {
        each([&](int at, const float (&v)[8]) {
            float sum = 0.0f;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                sum += v[i] * v[i];
            }
            sum = warp_reduce_sum<32>(sum);
            if ((threadIdx.x & 31) == 0) {
                sums[at / batch_columns] = sum;
            }
        });
    }
    // 1 / root mean square of a vector, from all their sums.
    __device__ __forceinline__ float scale(const float *sums, int vector, float epsilon) const {
        const int chunks = columns / batch_columns;
        float sum = 0.0f;
        for (int i = threadIdx.x & 31; i < chunks; i += 32) {
            sum += sums[vector * chunks + i];
        }
        return rsqrtf(warp_reduce_sum<32>(sum) / columns + epsilon);
    }
};

// Products of rows with the first `n` of some vectors, `vector_bytes` apart, complete in all lanes.
template <class layout, int rows, int vectors>
static __device__ __forceinline__ void batch_products(float (&sum)[rows][vectors], const char *const (&row)[rows],
                                                      const uint8_t *y, int vector_bytes, int columns, int n) {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < rows * vectors; i++) {
        sum[i / vectors][i % vectors] = 0.0f;
    }
    if constexpr (layout::pairs) {
        using product = pair_product<layout::type>;
#pragma unroll 1
        for (int pair = lane; 64 * pair < columns; pair += 32) {
            uint32_t x[rows][product::words];
#pragma unroll
            for (int r = 0; r < rows; r++) {
                read_words(x[r], reinterpret_cast<const uint32_t *>(row[r]) + pair * product::words);
            }
#pragma unroll
            for (int v = 0; v < vectors; v++) {
                if (v < n) {
                    uint32_t codes[16];
                    float2 scales[2];
                    read_pair(codes, scales, y + v * vector_bytes + pair * layout::pair_bytes);
#pragma unroll
                    for (int r = 0; r < rows; r++) {
                        sum[r][v] += product::dot(x[r], codes, scales);
                    }
                }
            }
        }
    } else {
        using product = block_product<layout::type>;
        const int blocks = columns / product::values, at = product::step * (lane % product::lanes);
#pragma unroll 1
        for (int block = lane / product::lanes; block < blocks; block += 32 / product::lanes) {
#pragma unroll
            for (int v = 0; v < vectors; v++) {
                if (v < n) {
                    const block_q8_1 *codes =
                        reinterpret_cast<const block_q8_1 *>(y + v * vector_bytes) + block * (product::values / QK8_1);
#pragma unroll
                    for (int r = 0; r < rows; r++) {
                        sum[r][v] += product::dot(row[r], codes, block, at);
                    }
                }
            }
        }
    }
#pragma unroll
    for (int i = 0; i < rows * vectors; i++) {
        sum[i / vectors][i % vectors] = warp_reduce_sum<32>(sum[i / vectors][i % vectors]);
    }
}

template <ggml_type type, int rows, int vectors> static __global__ void __launch_bounds__(32 * product_warps, 1)
    batch_products_kernel(const products_params p) {
    using layout = vector_layout<type, true>;
    using part_type = vectors_part<4>;
    extern __shared__ __align__(16) uint8_t shared_bytes[];
    __shared__ float sums[part_type::most_chunks];
    let_next_kernel_start();
    const product_matrix &a = matrix_of_block(p);
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    const int block_row = ((int) blockIdx.x - a.first_block) * product_warps * rows, first = block_row + warp * rows;
    const row_stage<true> stage(shared_bytes + p.vectors * p.vector_bytes, p.stage_bytes, 0);
    const char *matrix = a.weight + block_row * a.row_bytes;
    if (threadIdx.x == 0) {
        stage.fetch(matrix, nullptr, min(product_warps * rows, a.rows - block_row) * (int) a.row_bytes);
    }
    if (p.norm != nullptr && 32 * (int) threadIdx.x < p.columns) {
        prefetch_l2(p.norm + 32 * threadIdx.x);
    }
    part_type part(p);
    wait_for_previous_kernel();
    part.load();
    // Lane r + rows * v has the result of row r and vector v.
    const int own_row = first + lane % rows, own_vector = lane / rows;
    const bool stores = own_vector < p.vectors && own_row < a.rows;
    const int64_t own = (int64_t) own_vector * a.rows + own_row;
    const float add = a.add != nullptr && stores ? a.add[own] : 0.0f;
    if (p.norm != nullptr) {
        part.squares(sums);
        __syncthreads();
    }
    part.each([&](int at, const float (&from)[8]) {
        const int vector = at / p.columns, in_vector = at - vector * p.columns;
        float v[8], n[8] = {}, scale = 1.0f;
        if (p.norm != nullptr) {
            vector_part::read(n, p.norm + in_vector);
            scale = part.scale(sums, vector, p.epsilon);
        }
        float *normed = blockIdx.x == 0 && p.normed != nullptr ? p.normed + vector * p.columns : nullptr;
        vector_part::normalize(v, in_vector, from, n, scale, p.norm != nullptr, normed);
        vector_part::quantize_eight<layout>(shared_bytes + vector * p.vector_bytes, in_vector, v, true);
    });
    __syncthreads();
    if (first >= a.rows) {
        return;
    }
    stage.wait();
    const char *row_of[rows];
#pragma unroll
    for (int r = 0; r < rows; r++) { // rows past the last are that again
        row_of[r] = stage.rows(0, matrix) + (min(first + r, a.rows - 1) - block_row) * (int) a.row_bytes;
    }
    float sum[rows][vectors], result = 0.0f;
    batch_products<layout>(sum, row_of, shared_bytes, p.vector_bytes, p.columns, p.vectors);
#pragma unroll
    for (int i = 0; i < rows * vectors; i++) {
        result = lane == i ? sum[i % rows][i / rows] : result;
    }
    if (stores) {
        a.out[own] = result + add;
    }
}

// Of f32 matrices: a thread block a row. The norm's weights count for the row, and its factor for the sums.
static __global__ void __launch_bounds__(32 * product_warps) float_batch_kernel(const products_params p) {
    __shared__ float squares[product_warps][max_vectors], products[product_warps][max_vectors];
    let_next_kernel_start();
    const product_matrix &a = matrix_of_block(p);
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, row = (int) blockIdx.x - a.first_block;
    const float *weight = reinterpret_cast<const float *>(a.weight + row * a.row_bytes);
    float square[max_vectors] = {}, product[max_vectors] = {};
    bool waited = false;
#pragma unroll 1
    for (int at = 8 * (int) threadIdx.x; at < p.columns; at += vector_part::step) {
        float w[8], n[8];
        vector_part::read(w, weight + at);
        if (p.norm != nullptr) {
            vector_part::read(n, p.norm + at);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                w[i] *= n[i];
            }
        }
        if (!waited) {
            wait_for_previous_kernel();
            waited = true;
        }
#pragma unroll
        for (int v = 0; v < max_vectors; v++) {
            if (v < p.vectors) {
                float x[8];
                vector_part::read(x, p.x + v * p.columns + at);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    square[v] += x[i] * x[i];
                    product[v] += x[i] * w[i];
                }
            }
        }
    }
    wait_for_previous_kernel(); // those without values
#pragma unroll
    for (int v = 0; v < max_vectors; v++) {
        if (v < p.vectors) {
            square[v] = warp_reduce_sum<32>(square[v]), product[v] = warp_reduce_sum<32>(product[v]);
            if (lane == v) {
                squares[warp][v] = square[v], products[warp][v] = product[v];
            }
        }
    }
    __syncthreads();
    const auto total = [&](const float (&of)[product_warps][max_vectors], int vector) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < product_warps; i++) {
            sum += of[i][vector];
        }
        return sum;
    };
    const auto scale_of = [&](int vector) {
        return p.norm != nullptr ? rsqrtf(total(squares, vector) / p.columns + p.epsilon) : 1.0f;
    };
    if ((int) threadIdx.x < p.vectors) {
        const int64_t own = (int64_t) threadIdx.x * a.rows + row;
        const float result = total(products, threadIdx.x) * scale_of(threadIdx.x);
        a.out[own] = a.add != nullptr ? result + a.add[own] : result;
    }
    if (p.normed != nullptr && (int) blockIdx.x < p.vectors) { // a block a vector
        const int vector = blockIdx.x;
        const float scale = scale_of(vector);
        for (int at = 8 * (int) threadIdx.x; at < p.columns; at += vector_part::step) {
            float x[8], n[8], y[8];
            vector_part::read(x, p.x + vector * p.columns + at);
            vector_part::read(n, p.norm + at);
            vector_part::normalize(y, at, x, n, scale, true, p.normed + vector * p.columns);
        }
    }
}

} // namespace turbo_cuda
