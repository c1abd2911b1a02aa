// Attention kernels of the usual case: heads of 128, K and V of one format of our own, up to eight columns.

#include "attend_launch.cuh"

namespace turbo_cuda {

template <int format>
static cudaError_t launch_format(const attend_params &p, const attend_args &args, int slices, cudaStream_t stream) {
    constexpr int many = format == KV_TURBO4_TCQ ? 2 : 4; // beside its table there is no room for more
    return launch_slices<format, 1, 1, 1, many, 32, 16>(p, args, slices, stream);
}

cudaError_t attend_same(const attend_params &p, const attend_args &args, const attend_plan &plan, cudaStream_t stream) {
    switch (args.k.format) {
        case KV_TURBO2: return launch_format<KV_TURBO2>(p, args, plan.slices, stream);
        case KV_TURBO3: return launch_format<KV_TURBO3>(p, args, plan.slices, stream);
        case KV_TURBO4: return launch_format<KV_TURBO4>(p, args, plan.slices, stream);
        case KV_TURBO2_TCQ: return launch_format<KV_TURBO2_TCQ>(p, args, plan.slices, stream);
        case KV_TURBO3_TCQ: return launch_format<KV_TURBO3_TCQ>(p, args, plan.slices, stream);
        case KV_TURBO4_TCQ: return launch_format<KV_TURBO4_TCQ>(p, args, plan.slices, stream);
        default: return cudaErrorInvalidValue;
    }
}

} // namespace turbo_cuda
