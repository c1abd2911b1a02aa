// Launching the attention of short batches with warpgroup products. TURBO_SM90A says that this file is
// compiled for sm_90a; otherwise it is never chosen.

#include "attend_batch.cuh"
#include "attend_launch.cuh"

namespace turbo_cuda {

// Shared memory with so many staged tiles a team.
template <class shape> static size_t place_batch(attend_params &p, const attend_args &args, int slots) {
    p.late = 0;
    p.slot_bytes = slot_bytes(p.k, shape::keys), p.v_slot_bytes = slot_bytes(p.v, shape::keys);
    p.groups = batch_warpgroups / p.heads_per_block;
    while (p.splits % p.groups != 0) {
        p.groups--;
    }
    share_units(p, (args.n_kv + shape::keys - 1) / shape::keys);
    p.tile_buffers = slots;
    p.run_room = most_runs(args.runs, p.groups * shape::keys * (p.split_units + (p.split_rest > 0)));
    return batch_layout<shape>::fixed_bytes(p) + batch_layout<shape>::staged_bytes(p);
}

template <class shape> static cudaError_t launch_batch(attend_params p, const attend_args &args, cudaStream_t stream) {
    int slots = 8; // more are of no use
    while (slots > 1 && place_batch<shape>(p, args, slots) > args.shared_limit) {
        slots--;
    }
    const size_t shared = place_batch<shape>(p, args, slots);
    if (slots < 2 || shared > args.shared_limit) {
        return cudaErrorInvalidConfiguration;
    }
    p.column_blocks = (p.n_columns + shape::columns - 1) / shape::columns;
    const auto kernel = attend_batch_kernel<shape>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared);
    if (error != cudaSuccess) {
        return error;
    }
    const dim3 grid(p.splits / p.groups, p.n_head_kv / p.heads_per_block * p.column_blocks, args.n_streams);
    error = launch_overlapped(kernel, grid, batch_threads, shared, stream, p);
    return error != cudaSuccess ? error : launch_combine<1, 32>(p, args, stream);
}

template <int format> static constexpr auto launch_32 = launch_batch<batch_shape<32, family_of(format, format)>>;

cudaError_t attend_batch(const attend_params &p, const attend_args &args, cudaStream_t stream) {
    if (batch_columns_of(p.n_columns) == 16) {
        return launch_batch<batch_shape<16, family_each>>(p, args, stream);
    }
    switch (p.k.format == p.v.format ? p.k.format : family_any) {
        case KV_TURBO2: return launch_32<KV_TURBO2>(p, args, stream);
        case KV_TURBO3: return launch_32<KV_TURBO3>(p, args, stream);
        case KV_TURBO4: return launch_32<KV_TURBO4>(p, args, stream);
        case KV_TURBO2_TCQ: return launch_32<KV_TURBO2_TCQ>(p, args, stream);
        case KV_TURBO3_TCQ: return launch_32<KV_TURBO3_TCQ>(p, args, stream);
        case KV_TURBO4_TCQ: return launch_32<KV_TURBO4_TCQ>(p, args, stream);
        default: return launch_batch<batch_shape<32, family_any>>(p, args, stream);
    }
}

} // namespace turbo_cuda
