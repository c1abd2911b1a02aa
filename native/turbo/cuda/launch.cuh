// One way of launching all kernels here: programmatic dependent launch, so that a kernel's start overlaps the end of
// the one before it (each waits for it before touching memory). Ignored before sm_90.

#pragma once

#include <cuda_runtime.h>

namespace turbo_cuda {

template <class P>
static cudaError_t launch_overlapped(void (*kernel)(const P), dim3 grid, int threads, size_t shared,
                                     cudaStream_t stream, const P &p, int cluster = 1) {
    cudaLaunchAttribute attributes[2];
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    return cudaLaunchKernelEx(&config, kernel, p);
}

} // namespace turbo_cuda
