// Attention kernels: K and V both scalar codes.

#include "attend_launch.cuh"

namespace turbo_cuda {

cudaError_t attend_scalar(const attend_params &p, const attend_args &args, const attend_plan &plan,
                          cudaStream_t stream) {
    return args.head_dim <= 128 ? launch_small_heads<family_scalar>(p, args, plan, stream)
                                : launch_large_heads<family_scalar>(p, args, plan, stream);
}

} // namespace turbo_cuda
