// Centres of runs taken from keys, and put back, where no kernel that encodes or decodes them does it on the way.

#include "launch.cuh"
#include "ptx.cuh"
#include "runs.cuh"
#include "write.h"

namespace turbo_cuda {

static constexpr int most_threads = 256;

static __global__ void __launch_bounds__(most_threads) change_kernel(const __grid_constant__ run_change c) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int64_t row = blockIdx.x;
    const __half *centre = run_of_cell(c.runs, c.ids != nullptr ? c.ids[row] : row);
    const float *source = c.source + row * c.source_stride;
    float *target = c.target + row * c.target_stride;
    for (int i = threadIdx.x; i < c.row_values; i += blockDim.x) {
        target[i] = source[i] + c.sign * __half2float(centre[i]);
    }
}

cudaError_t change_by_runs(const run_change &args, cudaStream_t stream) {
    if (args.n_rows == 0) {
        return cudaSuccess;
    }
    return launch_overlapped(change_kernel, dim3(args.n_rows), most_threads, 0, stream, args);
}

// A thread two values.
static __global__ void __launch_bounds__(most_threads) add_kernel(const __grid_constant__ read_tensor r) {
    wait_for_previous_kernel();
    let_next_kernel_start();
    const int64_t pairs = r.row_values / 2, index = (int64_t) blockIdx.x * blockDim.x + threadIdx.x,
                  row = index / pairs;
    if (row >= r.n_rows) {
        return;
    }
    const int pair = (int) (index - row * pairs);
    const int64_t plane = (int64_t) r.ne1 * r.ne2, i3 = row / plane, rest = row - i3 * plane, i2 = rest / r.ne1,
                  i1 = rest - i2 * r.ne1;
    __half2 *at = reinterpret_cast<__half2 *>(r.target + i1 * r.target_stride[0] + i2 * r.target_stride[1] +
                                              i3 * r.target_stride[2]) +
                  pair;
    const __half2 *lacks = reinterpret_cast<const __half2 *>(run_of_cell(r.runs, i1) + i2 * r.row_values) + pair;
    const float2 x = __half22float2(*at), c = __half22float2(*lacks);
    *at = __floats2half2_rn(x.x + c.x, x.y + c.y);
}

cudaError_t add_runs(const read_tensor &args, cudaStream_t stream) {
    const int64_t pairs = args.n_rows * (args.row_values / 2);
    if (pairs == 0) {
        return cudaSuccess;
    }
    return launch_overlapped(add_kernel, dim3((unsigned) ((pairs + most_threads - 1) / most_threads)), most_threads, 0,
                             stream, args);
}

} // namespace turbo_cuda
