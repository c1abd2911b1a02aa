// Attention kernels: trellis codes and plain formats too.

#include "attend_launch.cuh"

namespace turbo_cuda {

cudaError_t attend_any(const attend_params &p, const attend_args &args, const attend_plan &plan, cudaStream_t stream) {
    return launch_family<true>(p, args, plan, stream);
}

} // namespace turbo_cuda
