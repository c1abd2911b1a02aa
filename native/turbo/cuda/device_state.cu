#include "turbo/cuda/device_state.h"

#include "ggml-backend-impl.h"
#include "ggml-cuda.h"
#include "turbo/cuda/ggml_glue.cuh"

using namespace turbo_cuda;

cudaStream_t &turbo_cuda::last_stream() {
    static thread_local cudaStream_t stream = nullptr;
    return stream;
}

void turbo_cuda_watch() {
    last_stream() = nullptr;
}

bool turbo_cuda_records() {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    return last_stream() != nullptr && cudaStreamIsCapturing(last_stream(), &status) == cudaSuccess &&
           status != cudaStreamCaptureStatusNone;
}

void turbo_cuda_forget_error() {
    forget_put_off();
    (void) cudaGetLastError();
    last_write().attention = last_scale().attention = nullptr;
}

void turbo_cuda_drop_graphs(ggml_backend *backend) {
#ifdef USE_CUDA_GRAPH
    if (ggml_backend_is_cuda(backend)) {
        ggml_backend_synchronize(backend);
        static_cast<ggml_backend_cuda_context *>(backend->context)->cuda_graphs.clear();
    }
#else
    GGML_UNUSED(backend);
#endif
}
