// Attention kernels of usual pairs of formats, up to eight columns: heads of 128, and larger ones in trellis codes,
// which keep many registers busy.

#include "attend_launch.cuh"

namespace turbo_cuda {

template <int k_format, int v_format = k_format>
static cudaError_t launch_128(const attend_params &p, const attend_args &args, int slices, cudaStream_t stream) {
    constexpr int many = k_format < KV_TURBO4_TCQ ? 4 : 2; // beside larger tiles or tables there is no room for more
    return launch_slices<family_of(k_format, v_format), 1, 1, 1, many, 32, 16>(p, args, slices, stream);
}

template <int format>
static cudaError_t launch_trellis(const attend_params &p, const attend_args &args, int slices, cudaStream_t stream) {
    constexpr int family = family_of(format, format);
    switch (args.head_dim) {
        case 128: return launch_128<format>(p, args, slices, stream);
        case 256: return launch_slices<family, 2, 1, 1, 2, 32, 8>(p, args, slices, stream);
        case 512: return launch_slices<family, 4, 1, 1, 2, 32, 8>(p, args, slices, stream);
        default: return cudaErrorInvalidValue;
    }
}

cudaError_t attend_pairs(const attend_params &p, const attend_args &args, const attend_plan &plan,
                         cudaStream_t stream) {
    switch (family_of(args.k.format, args.v.format)) {
        case family_of(KV_TURBO2, KV_TURBO2): return launch_128<KV_TURBO2>(p, args, plan.slices, stream);
        case family_of(KV_TURBO3, KV_TURBO3): return launch_128<KV_TURBO3>(p, args, plan.slices, stream);
        case family_of(KV_TURBO4, KV_TURBO4): return launch_128<KV_TURBO4>(p, args, plan.slices, stream);
        case family_of(KV_Q8_0, KV_Q8_0): return launch_128<KV_Q8_0>(p, args, plan.slices, stream);
        case family_of(KV_Q8_0, KV_TURBO3): return launch_128<KV_Q8_0, KV_TURBO3>(p, args, plan.slices, stream);
        case family_of(KV_TURBO4_TCQ, KV_TURBO3_TCQ):
            return launch_128<KV_TURBO4_TCQ, KV_TURBO3_TCQ>(p, args, plan.slices, stream);
        case family_of(KV_TURBO2_TCQ, KV_TURBO2_TCQ):
            return launch_trellis<KV_TURBO2_TCQ>(p, args, plan.slices, stream);
        case family_of(KV_TURBO3_TCQ, KV_TURBO3_TCQ):
            return launch_trellis<KV_TURBO3_TCQ>(p, args, plan.slices, stream);
        case family_of(KV_TURBO4_TCQ, KV_TURBO4_TCQ):
            return launch_trellis<KV_TURBO4_TCQ>(p, args, plan.slices, stream);
        default: return cudaErrorInvalidValue;
    }
}

} // namespace turbo_cuda
