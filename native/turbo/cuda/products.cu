// Launches of products_kernel.cuh: which instance, how many thread blocks, how much shared memory.

#include "products_batch.cuh"

#include "launch.cuh"

namespace turbo_cuda {

static constexpr int mix_rows = 8, most_batch_rows = 3;
static constexpr int kept_shared = 2 << 10; // of what a thread block may have, for the kernels' own variables

// Blocks of all matrices if a block takes `rows` rows of one.
static int count_blocks(products_params &p, int rows) {
    int blocks = 0;
    for (int i = 0; i < p.n; i++) {
        p.matrix[i].first_block = blocks;
        blocks += (p.matrix[i].rows + rows - 1) / rows;
    }
    return blocks;
}

// Room for `rows` rows that begin anywhere within 16 bytes.
static int stage_of(int rows, int64_t row_bytes) {
    return (int) ((rows * row_bytes + 15 + 15) / 16 * 16);
}

// Rows a warp takes of a short batch's matrices: few, but so many that there is a multiprocessor for every block.
static int batch_rows(products_params &p) {
    int rows = 1;
    while (rows < most_batch_rows && count_blocks(p, rows * product_warps) > p.multiprocessors) {
        rows++;
    }
    return rows;
}

// Can rows be staged of which a block has at least `rows` at a time? Pairs of blocks need whole pairs, and rows that
// are whole words.
static bool can_stage(ggml_type type, int staging, int columns, int64_t row_bytes, int rows, int vectors) {
    return rows * (row_bytes + 32) + vectors * (columns * 5 / 4 + 96) <= staging - kept_shared &&
           (!goes_in_pairs(type) || (columns % 64 == 0 && row_bytes % 4 == 0));
}

// More than 48 KB have to be asked for, of every kernel and device.
template <class P> static cudaError_t launch(void (*kernel)(const P), dim3 grid, int threads, int shared, int staging,
                                             cudaStream_t stream, const P &p) {
    if (shared > 48 << 10) {
        const cudaError_t error = cudaFuncSetAttribute(
            (const void *) kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, staging - kept_shared);
        if (error != cudaSuccess) {
            return error;
        }
    }
    return launch_overlapped(kernel, grid, threads, shared, stream, p);
}

template <ggml_type type, int rows, bool gated, bool staged>
static cudaError_t launch_rows(products_params &p, cudaStream_t stream) {
    const dim3 grid(count_blocks(p, rows * product_warps), p.used, p.vectors);
    p.vector_bytes = vector_layout<type, staged>::bytes(p.columns);
    p.stage_bytes = staged ? stage_of(rows * product_warps, p.matrix[0].row_bytes) : 0;
    const int shared = p.vector_bytes + (gated ? 2 : 1) * p.stage_bytes;
    return launch(vector_products_kernel<type, rows, gated, staged>, grid, 32 * product_warps, shared, p.staging,
                  stream, p);
}

// As few blocks as there are multiprocessors, if so many rows a warp have room: what all of them do, and all of them
// read the same, is done once a block. Large matrices: two blocks a multiprocessor.
template <ggml_type type, bool gated, bool staged>
static cudaError_t launch_products(products_params &p, cudaStream_t stream) {
    constexpr int most = gated ? 3 : 4;
    int rows = 1;
    while (rows < most && count_blocks(p, rows * product_warps) * p.used * p.vectors > p.multiprocessors) {
        rows++;
    }
    const auto shared = [&] {
        return (gated ? 2 : 1) * stage_of(rows * product_warps, p.matrix[0].row_bytes) +
               vector_layout<type, staged>::bytes(p.columns);
    };
    while (staged && rows > 1 && shared() > p.staging / 2) {
        rows--;
    }
    switch (rows) {
        case 1: return launch_rows<type, 1, gated, staged>(p, stream);
        case 2: return launch_rows<type, 2, gated, staged>(p, stream);
        case 3: return launch_rows<type, 3, gated, staged>(p, stream);
        default: return launch_rows<type, most, gated, staged>(p, stream);
    }
}

template <ggml_type type, bool staged> static cudaError_t launch_type(products_params &p, cudaStream_t stream) {
    return p.gated == GATE_NONE ? launch_products<type, false, staged>(p, stream)
                                : launch_products<type, true, staged>(p, stream);
}

template <ggml_type type, int vectors> static cudaError_t launch_batch(products_params &p, cudaStream_t stream) {
    const int rows = batch_rows(p);
    const dim3 grid(count_blocks(p, rows * product_warps));
    p.vector_bytes = vector_layout<type, true>::bytes(p.columns);
    p.stage_bytes = stage_of(rows * product_warps, p.matrix[0].row_bytes);
    const auto kernel = rows == 1   ? batch_products_kernel<type, 1, vectors>
                        : rows == 2 ? batch_products_kernel<type, 2, vectors>
                                    : batch_products_kernel<type, most_batch_rows, vectors>;
    return launch(kernel, grid, 32 * product_warps, p.vectors * p.vector_bytes + p.stage_bytes, p.staging, stream, p);
}

static cudaError_t batch(products_params &p, cudaStream_t stream) {
    switch (p.type) {
#define TURBO_LAUNCH(TYPE, NAME)                                                                                       \
    case GGML_TYPE_##TYPE:                                                                                             \
        return p.vectors <= 4 ? launch_batch<GGML_TYPE_##TYPE, 4>(p, stream)                                           \
                              : launch_batch<GGML_TYPE_##TYPE, 8>(p, stream);
        TURBO_PRODUCT_TYPES(TURBO_LAUNCH)
#undef TURBO_LAUNCH
        case GGML_TYPE_F32: {
            const dim3 grid(count_blocks(p, 1));
            return launch(float_batch_kernel, grid, 32 * product_warps, 0, 0, stream, p);
        }
        default: return cudaErrorInvalidValue;
    }
}

bool products_pay(const products_args &args) {
    products_params p{args};
    if (p.vectors == 1 || p.ids != nullptr) {
        return true;
    }
    if (p.type == GGML_TYPE_F32) {
        return p.normed == nullptr || count_blocks(p, 1) >= p.vectors;
    }
    // Every block prepares all vectors: of a large matrix that is too much work.
    return can_stage(p.type, p.staging, p.columns, p.matrix[0].row_bytes, batch_rows(p) * product_warps, p.vectors) &&
           count_blocks(p, most_batch_rows * product_warps) <= 2 * p.multiprocessors;
}

cudaError_t products(const products_args &args, cudaStream_t stream) {
    products_params p{args};
    if (p.vectors > 1 && p.ids == nullptr) {
        return batch(p, stream);
    }
    const int rows = product_warps * (p.gated == GATE_NONE ? 1 : 2);
    const bool staged = can_stage(p.type, p.staging, p.columns, p.matrix[0].row_bytes, rows, 1);
    switch (p.type) {
#define TURBO_LAUNCH(TYPE, NAME)                                                                                       \
    case GGML_TYPE_##TYPE:                                                                                             \
        return staged ? launch_type<GGML_TYPE_##TYPE, true>(p, stream)                                                 \
                      : launch_type<GGML_TYPE_##TYPE, false>(p, stream);
        TURBO_PRODUCT_TYPES(TURBO_LAUNCH)
#undef TURBO_LAUNCH
        case GGML_TYPE_F32:
            return launch(float_products_kernel, dim3(count_blocks(p, 1)), 32 * product_warps, 0, 0, stream, p);
        default: return cudaErrorInvalidValue;
    }
}

template <ggml_type type, bool staged> static cudaError_t launch_mix(mix_params &p, cudaStream_t stream) {
    p.vector_bytes = vector_layout<type, staged>::bytes(p.used * p.columns);
    p.warps_each = product_warps / p.used;
    const int block_rows = mix_rows * p.warps_each;
    p.stage_bytes = staged ? stage_of(block_rows, p.row_bytes) : 0;
    const dim3 grid((p.rows + block_rows - 1) / block_rows, p.vectors);
    return launch(expert_mix_kernel<type, mix_rows, staged>, grid, 32 * product_warps,
                  p.vector_bytes + p.used * p.stage_bytes, p.staging, stream, p);
}

cudaError_t mix_experts(const mix_args &args, cudaStream_t stream) {
    mix_params p{args};
    const bool staged = can_stage(p.type, p.staging, p.columns, p.row_bytes, product_warps * mix_rows, p.used);
    switch (p.type) {
#define TURBO_LAUNCH(TYPE, NAME)                                                                                       \
    case GGML_TYPE_##TYPE:                                                                                             \
        return staged ? launch_mix<GGML_TYPE_##TYPE, true>(p, stream) : launch_mix<GGML_TYPE_##TYPE, false>(p, stream);
        TURBO_PRODUCT_TYPES(TURBO_LAUNCH)
#undef TURBO_LAUNCH
        default: return cudaErrorInvalidValue;
    }
}

} // namespace turbo_cuda
