// LoRA adapters: loaded for a model, which frees them; scaled per context.
#include "handles.h"
#include "log_ring.h"

#include "ggml.h"
#include "gguf.h"

#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace {

struct gguf_deleter {
    void operator()(gguf_context * file) { gguf_free(file); }
};

int32_t check_key(const gguf_context * file, const char * path, const char * key, gguf_type type, bool needed) {
    const int64_t id = gguf_find_key(file, key);
    if (id < 0 && needed) {
        return turbo_fail(TURBO_E_LOAD, "'%s' is no LoRA adapter: it has no %s", path, key);
    }
    if (id >= 0 && gguf_get_kv_type(file, id) != type) {
        return turbo_fail(TURBO_E_LOAD, "'%s' is damaged: %s is of type %s, not %s", path, key,
                          gguf_type_name(gguf_get_kv_type(file, id)), gguf_type_name(type));
    }
    return TURBO_OK;
}

// What llama.cpp takes for granted and would abort on: the types of metadata and of tensors.
int32_t check_file(const char * path) {
    const std::unique_ptr<gguf_context, gguf_deleter> file(gguf_init_from_file(path, { true, nullptr }));
    if (!file) {
        return turbo_fail(TURBO_E_LOAD, "cannot read the LoRA adapter '%s': %s", path, turbo_log_reason().c_str());
    }
    for (const char * key : { "general.type", "general.architecture", "adapter.type" }) {
        const int32_t status = check_key(file.get(), path, key, GGUF_TYPE_STRING, true);
        if (status != TURBO_OK) {
            return status;
        }
    }
    for (int64_t i = 0; i < gguf_get_n_tensors(file.get()); i++) {
        const ggml_type type = gguf_get_tensor_type(file.get(), i);
        if (type != GGML_TYPE_F32 && type != GGML_TYPE_F16 && type != GGML_TYPE_BF16 && !ggml_is_quantized(type)) {
            return turbo_fail(TURBO_E_LOAD, "'%s' is damaged: tensor %s is of type %s", path,
                              gguf_get_tensor_name(file.get(), i), ggml_type_name(type));
        }
    }
    return check_key(file.get(), path, "adapter.lora.alpha", GGUF_TYPE_FLOAT32, false);
}

}  // namespace

int32_t turbo_lora_load(turbo_model * model, const char * path, turbo_lora ** out) {
    *out = nullptr;
    return turbo_guard("lora_load", [&]() -> int32_t {
        turbo_log_mark();
        const int32_t status = check_file(path);
        if (status != TURBO_OK) {
            return status;
        }
        const turbo_abort_scope scope;
        llama_adapter_lora * adapter = llama_adapter_lora_init(model->model, path);
        if (!adapter) {
            return turbo_fail(TURBO_E_LOAD, "cannot load the LoRA adapter '%s': %s", path, turbo_log_reason().c_str());
        }
        model->loras.push_back(std::make_unique<turbo_lora>(turbo_lora{ adapter }));
        *out = model->loras.back().get();
        return TURBO_OK;
    });
}

int32_t turbo_lora_set(turbo_context * ctx, turbo_lora ** loras, const float * scales, int32_t n) {
    return turbo_guard("lora_set", [&]() -> int32_t {
        std::vector<llama_adapter_lora *> adapters;
        std::vector<float> weights;
        for (int32_t i = 0; i < n; i++) {
            if (!std::isfinite(scales[i])) {
                return turbo_fail(TURBO_E_ARGUMENT, "scale %d of the LoRA adapters is not a finite number", i);
            }
            adapters.push_back(loras[i]->adapter);
            weights.push_back(scales[i]);
        }
        if (llama_set_adapters_lora(ctx->ctx, adapters.data(), adapters.size(), weights.data()) != 0) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "the context refused the LoRA adapters: %s",
                              turbo_log_reason().c_str());
        }
        return TURBO_OK;
    });
}
