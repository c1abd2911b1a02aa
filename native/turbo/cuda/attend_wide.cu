// Launching the attention of many columns with warpgroup products. TURBO_SM90A says that this file is compiled for sm_90a;
// otherwise it is never chosen.

#include "attend_launch.cuh"
#include "attend_wide.cuh"

namespace turbo_cuda {

template <class shape> static size_t place_tiles(attend_params &p, int depth) {
    p.slot_bytes = slot_bytes(p.k, shape::keys), p.v_slot_bytes = slot_bytes(p.v, shape::keys);
    p.tile_buffers = depth;
    return wide_layout<shape>::bytes(p);
}

template <class shape>
static cudaError_t launch_wide(attend_params p, const attend_args &args, int depth, cudaStream_t stream) {
    const size_t shared = place_tiles<shape>(p, depth);
    p.late = 0;
    share_units(p, (args.n_kv + 15) / 16);
    p.column_blocks = (p.n_columns + wide_columns - 1) / wide_columns;
    const auto kernel = attend_wide_kernel<shape>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared);
    if (error != cudaSuccess) {
        return error;
    }
    const dim3 grid(p.splits, p.n_head_kv / p.heads_per_block * p.column_blocks, args.n_streams);
    error = launch_overlapped(kernel, grid, shape::threads, shared, stream, p);
    return error != cudaSuccess ? error : launch_combine<1, 32>(p, args, stream);
}

bool attend_wide_compiled() {
#ifdef TURBO_SM90A
    return true;
#else
    return false;
#endif
}

// Long tiles if they can be three deep: with fewer the warpgroups wait for each other.
template <int heads>
static cudaError_t launch_heads(const attend_params &params, const attend_args &args, cudaStream_t stream) {
    attend_params p = params;
    for (int depth = 4; depth > 2; depth--) {
        if (place_tiles<wide_shape<64, heads>>(p, depth) <= args.shared_limit) {
            return launch_wide<wide_shape<64, heads>>(p, args, depth, stream);
        }
    }
    for (int depth = 4; depth > 1; depth--) {
        if (place_tiles<wide_shape<32, heads>>(p, depth) <= args.shared_limit) {
            return launch_wide<wide_shape<32, heads>>(p, args, depth, stream);
        }
    }
    return cudaErrorInvalidConfiguration;
}

cudaError_t attend_wide(const attend_params &p, const attend_args &args, cudaStream_t stream) {
    return p.heads_per_block > wide_pairs ? launch_heads<2>(p, args, stream) : launch_heads<1>(p, args, stream);
}

} // namespace turbo_cuda
