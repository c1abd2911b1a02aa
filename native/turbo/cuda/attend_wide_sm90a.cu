// Launching the attention of many columns with warpgroup products. TURBO_SM90A says that this file is compiled for
// sm_90a; otherwise it is never chosen.

#include "attend_launch.cuh"
#include "attend_wide.cuh"

namespace turbo_cuda {

template <class shape> static size_t place_tiles(attend_params &p, const attend_args &args, int depth) {
    p.late = 0;
    p.slot_bytes = slot_bytes(p.k, shape::keys), p.v_slot_bytes = slot_bytes(p.v, shape::keys);
    p.tile_buffers = depth;
    share_units(p, (args.n_kv + wide_unit - 1) / wide_unit);
    p.run_room = room_for_runs(p, args, wide_unit);
    return wide_layout<shape>::bytes(p);
}

template <class shape>
static cudaError_t launch_wide(attend_params p, const attend_args &args, int depth, cudaStream_t stream) {
    const size_t shared = place_tiles<shape>(p, args, depth);
    p.column_blocks = (p.n_columns + wide_columns - 1) / wide_columns;
    const auto kernel = attend_wide_kernel<shape>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared);
    if (error != cudaSuccess) {
        return error;
    }
    const dim3 grid(p.splits, p.n_head_kv / p.heads_per_block * p.column_blocks, args.n_streams);
    error = launch_overlapped(kernel, grid, wide_threads, shared, stream, p);
    return error != cudaSuccess ? error : launch_combine<1, 32>(p, args, stream);
}

bool attend_wide_compiled() {
#ifdef TURBO_SM90A
    return true;
#else
    return false;
#endif
}

template <int keys, int slots> static bool fits(const attend_params &params, const attend_args &args, int depth) {
    attend_params p = params;
    return place_tiles<wide_shape<keys, slots>>(p, args, depth) <= args.shared_limit;
}

// Long tiles if there is room, which cost fewer instructions a token; and as many of them on their way as possible.
cudaError_t attend_wide(const attend_params &p, const attend_args &args, cudaStream_t stream) {
    if (fits<64, 3>(p, args, 3)) {
        return launch_wide<wide_shape<64, 3>>(p, args, fits<64, 3>(p, args, 4) ? 4 : 3, stream);
    }
    if (fits<64, 2>(p, args, 2)) {
        return launch_wide<wide_shape<64, 2>>(p, args, fits<64, 2>(p, args, 3) ? 3 : 2, stream);
    }
    if (fits<32, 3>(p, args, 4)) {
        return launch_wide<wide_shape<32, 3>>(p, args, 4, stream);
    }
    return fits<32, 2>(p, args, 2) ? launch_wide<wide_shape<32, 2>>(p, args, fits<32, 2>(p, args, 4) ? 4 : 2, stream)
                                   : cudaErrorInvalidConfiguration;
}

} // namespace turbo_cuda
