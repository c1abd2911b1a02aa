// Loading a model and freeing it.
#include "handles.h"
#include "log_ring.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

namespace {

// llama.cpp keeps pointers to the strings and arrays of its parameters only during the load, so they live here.
struct load_request {
    std::vector<llama_model_tensor_buft_override> overrides;
    std::vector<std::string> patterns;
    std::vector<float> split;
    bool cancelled = false;
    turbo_progress_fn progress = nullptr;
    void * progress_data = nullptr;
};

bool on_progress(float progress, void * data) {
    load_request * request = static_cast<load_request *>(data);
    if (request->progress && !request->progress(progress, request->progress_data)) {
        request->cancelled = true;
        return false;
    }
    return true;
}

ggml_backend_buffer_type_t buffer_type_by_name(const std::string & name) {
    for (size_t i = 0; i < ggml_backend_dev_count(); i++) {
        ggml_backend_buffer_type_t type = ggml_backend_dev_buffer_type(ggml_backend_dev_get(i));
        if (type && name == ggml_backend_buft_name(type)) {
            return type;
        }
    }
    return nullptr;
}

// "pattern=buffer,pattern=buffer"
int32_t parse_overrides(const char * text, load_request & request) {
    std::vector<ggml_backend_buffer_type_t> buffers;
    std::string rest = text;
    while (!rest.empty()) {
        const size_t comma = rest.find(',');
        const std::string item = rest.substr(0, comma);
        rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
        const size_t equals = item.rfind('=');
        if (equals == std::string::npos) {
            return turbo_fail(TURBO_E_ARGUMENT, "override '%s' is not of the form pattern=buffer", item.c_str());
        }
        ggml_backend_buffer_type_t type = buffer_type_by_name(item.substr(equals + 1));
        if (!type) {
            return turbo_fail(TURBO_E_ARGUMENT, "unknown buffer '%s' in override '%s'",
                              item.substr(equals + 1).c_str(), item.c_str());
        }
        request.patterns.push_back(item.substr(0, equals));
        buffers.push_back(type);
    }
    for (size_t i = 0; i < buffers.size(); i++) {
        request.overrides.push_back({ request.patterns[i].c_str(), buffers[i] });
    }
    request.overrides.push_back({ nullptr, nullptr });
    return TURBO_OK;
}

bool load_mode_by_name(const char * name, enum llama_load_mode & out) {
    for (int mode = LLAMA_LOAD_MODE_AUTO; mode <= LLAMA_LOAD_MODE_DIRECT_IO; mode++) {
        if (strcmp(llama_load_mode_name((enum llama_load_mode) mode), name) == 0) {
            out = (enum llama_load_mode) mode;
            return true;
        }
    }
    return false;
}

int32_t fill_params(const turbo_model_params & in, load_request & request, llama_model_params & out) {
    out = llama_model_default_params();
    if (in.load_mode && !load_mode_by_name(in.load_mode, out.load_mode)) {
        return turbo_fail(TURBO_E_ARGUMENT, "load_mode '%s' is not one of auto, none, mmap, mlock, mmap+mlock, dio",
                          in.load_mode);
    }
    if (in.split_mode < 0 || in.split_mode > LLAMA_SPLIT_MODE_ROW) {
        return turbo_fail(TURBO_E_ARGUMENT, "split_mode %d is not 0, 1 or 2", in.split_mode);
    }
    if (in.n_tensor_split < 0 || (size_t) in.n_tensor_split > llama_max_devices()) {
        return turbo_fail(TURBO_E_ARGUMENT, "tensor_split has %d values, at most %zu are possible", in.n_tensor_split,
                          llama_max_devices());
    }
    if (in.overrides && *in.overrides) {
        const int32_t status = parse_overrides(in.overrides, request);
        if (status != TURBO_OK) {
            return status;
        }
        out.tensor_buft_overrides = request.overrides.data();
    }
    if (in.tensor_split && in.n_tensor_split > 0) {
        request.split.assign(llama_max_devices(), 0.0f);
        std::copy(in.tensor_split, in.tensor_split + in.n_tensor_split, request.split.begin());
        out.tensor_split = request.split.data();
    }
    out.n_gpu_layers = in.n_gpu_layers;
    out.split_mode = (enum llama_split_mode) in.split_mode;
    out.main_gpu = in.main_gpu;
    out.use_extra_bufts = in.use_extra_bufts;
    out.check_tensors = in.check_tensors;
    out.vocab_only = in.vocab_only;
    out.no_alloc = in.no_alloc;
    out.load_mtp = in.load_mtp;
    request.progress = in.progress;
    request.progress_data = in.progress_data;
    out.progress_callback = on_progress;
    out.progress_callback_user_data = &request;
    return TURBO_OK;
}

}  // namespace

void turbo_model_params_init(turbo_model_params * params) {
    const llama_model_params defaults = llama_model_default_params();
    *params = turbo_model_params{};
    params->n_gpu_layers = defaults.n_gpu_layers;
    params->split_mode = defaults.split_mode;
    params->main_gpu = defaults.main_gpu;
    params->load_mode = llama_load_mode_name(defaults.load_mode);
    params->use_extra_bufts = defaults.use_extra_bufts;
    params->check_tensors = defaults.check_tensors;
    params->load_mtp = defaults.load_mtp;
}

int32_t turbo_model_load(const char * path, const turbo_model_params * params, turbo_model ** out) {
    *out = nullptr;
    return turbo_guard("model_load", [&]() -> int32_t {
        const int32_t started = turbo_backend_init();
        if (started != TURBO_OK) {
            return started;
        }
        load_request request;
        llama_model_params native;
        const int32_t status = fill_params(*params, request, native);
        if (status != TURBO_OK) {
            return status;
        }
        turbo_log_mark();
        const turbo_abort_scope scope;
        llama_model * loaded = llama_model_load_from_file(path, native);
        if (!loaded) {
            if (request.cancelled) {
                return turbo_fail(TURBO_E_ABORTED, "loading '%s' was cancelled", path);
            }
            const std::string reason = turbo_log_reason();
            return turbo_fail(turbo_is_memory_reason(reason) ? TURBO_E_MEMORY : TURBO_E_LOAD, "cannot load '%s': %s",
                              path, reason.empty() ? "no reason given" : reason.c_str());
        }
        auto model = std::make_unique<turbo_model>();
        model->model = loaded;
        model->vocab = llama_model_get_vocab(loaded);
        model->n_vocab = llama_vocab_n_tokens(model->vocab);
        *out = model.release();
        return TURBO_OK;
    });
}

void turbo_model_free(turbo_model * model) {
    if (model) {
        if (!turbo_device_lost()) {
            llama_model_free(model->model);  // and its LoRA adapters
        }
        delete model;
    }
}
