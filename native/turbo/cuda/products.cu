// Launches of products_kernel.cuh: which instance, how many thread blocks.

#include "products_kernel.cuh"

#include "launch.cuh"

namespace turbo_cuda {

static constexpr int mix_rows = 4;

bool products_read(ggml_type type, int64_t columns, bool gated) {
    switch (type) {
#define TURBO_READS(TYPE, NAME) case GGML_TYPE_##TYPE:
        TURBO_PRODUCT_TYPES(TURBO_READS)
#undef TURBO_READS
        return columns % ggml_blck_size(type) == 0 && columns % QK8_1 == 0;
        case GGML_TYPE_F32: return !gated && columns % 4 == 0;
        default: return false;
    }
}

// Blocks of all matrices if a block takes `rows` rows of one.
static int count_blocks(products_params &p, int rows) {
    int blocks = 0;
    for (int i = 0; i < p.n; i++) {
        p.matrix[i].first_block = blocks;
        blocks += (p.matrix[i].rows + rows - 1) / rows;
    }
    return blocks;
}

template <ggml_type type, int rows>
static cudaError_t launch_rows(products_params &p, cudaStream_t stream) {
    const dim3 grid(count_blocks(p, rows * product_warps), p.used);
    const size_t shared = p.columns / QK8_1 * sizeof(block_q8_1);
    auto kernel = p.gated == GATE_NONE ? vector_products_kernel<type, rows, false>
                                       : vector_products_kernel<type, rows, true>;
    return launch_overlapped(kernel, grid, 32 * product_warps, shared, stream, p);
}

// Two rows a warp have more on their way, but not if that leaves multiprocessors idle.
template <ggml_type type> static cudaError_t launch_products(products_params &p, cudaStream_t stream) {
    const bool many = count_blocks(p, 2 * product_warps) * p.used >= 2 * p.multiprocessors;
    return many ? launch_rows<type, 2>(p, stream) : launch_rows<type, 1>(p, stream);
}

cudaError_t products(const products_args &args, cudaStream_t stream) {
    products_params p{args};
    switch (p.type) {
#define TURBO_LAUNCH(TYPE, NAME) \
    case GGML_TYPE_##TYPE: return launch_products<GGML_TYPE_##TYPE>(p, stream);
        TURBO_PRODUCT_TYPES(TURBO_LAUNCH)
#undef TURBO_LAUNCH
        case GGML_TYPE_F32: {
            const dim3 grid(count_blocks(p, 1));
            return launch_overlapped(float_products_kernel, grid, 32 * product_warps, 0, stream, p);
        }
        default: return cudaErrorInvalidValue;
    }
}

cudaError_t mix_experts(const mix_args &args, cudaStream_t stream) {
    const mix_params p{args};
    const dim3 grid((p.rows + mix_rows - 1) / mix_rows);
    const size_t shared = (size_t) p.used * (p.columns / QK8_1) * sizeof(block_q8_1);
    switch (p.type) {
#define TURBO_LAUNCH(TYPE, NAME) \
    case GGML_TYPE_##TYPE:       \
        return launch_overlapped(expert_mix_kernel<GGML_TYPE_##TYPE, mix_rows>, grid, 32 * p.used, shared, stream, p);
        TURBO_PRODUCT_TYPES(TURBO_LAUNCH)
#undef TURBO_LAUNCH
        default: return cudaErrorInvalidValue;
    }
}

} // namespace turbo_cuda
