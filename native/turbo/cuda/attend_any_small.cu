// Attention kernels: trellis codes and plain formats too, heads of 64 and 128.

#include "attend_launch.cuh"

namespace turbo_cuda {

cudaError_t attend_any_small(const attend_params &p, const attend_args &args, const attend_plan &plan,
                             cudaStream_t stream) {
    return launch_small_heads<family_any>(p, args, plan, stream);
}

} // namespace turbo_cuda
