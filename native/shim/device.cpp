#include "device.h"

#include "log_ring.h"

#include "llama-context.h"

#include "ggml-backend.h"

#ifdef TURBO_WITH_CUDA
#    include "turbo/cuda/device_state.h"
#endif

void turbo_device_watch() {
#ifdef TURBO_WITH_CUDA
    turbo_cuda_watch();
#endif
}

bool turbo_device_records() {
#ifdef TURBO_WITH_CUDA
    return turbo_cuda_records();
#else
    return false;
#endif
}

void turbo_device_forget_error() {
#ifdef TURBO_WITH_CUDA
    turbo_cuda_forget_error();
#endif
}

void turbo_device_drop_graphs(llama_context & ctx) {
#ifdef TURBO_WITH_CUDA
    ggml_backend_sched_t sched = ctx.get_sched();
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); i++) {
        turbo_cuda_drop_graphs(ggml_backend_sched_get_backend(sched, i));
    }
#else
    (void) ctx;
#endif
}

bool turbo_device_took_back() {
    return turbo_log_took_back();
}

std::string turbo_device_free_text() {
    std::string text;
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_GPU) {
            size_t free = 0;
            size_t total = 0;
            ggml_backend_dev_memory(dev, &free, &total);
            text += (text.empty() ? "" : ", ") + std::to_string(free >> 20) + " MiB free on " + ggml_backend_dev_name(dev);
        }
    }
    return text;
}
