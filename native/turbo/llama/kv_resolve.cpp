#include "turbo/llama/kv_resolve.h"

#include "llama-model.h"
#include "llama-impl.h"
#include "turbo/types.h"

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <set>
#include <string>

static bool refuse(char * why, size_t size, const char * format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why, size, format, args);
    va_end(args);
    return false;
}

// The distinct K and V head dimensions of the layers that own a KV cache.
static std::set<uint32_t> head_dims(const llama_hparams & hparams) {
    std::set<uint32_t> dims;
    for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
        if (hparams.has_kv(il) && !hparams.is_recr(il) && hparams.n_head_kv(il) > 0) {
            dims.insert(hparams.n_embd_head_k(il));
            dims.insert(hparams.n_embd_head_v(il));
        }
    }
    return dims;
}

static std::string join(const std::set<uint32_t> & values) {
    std::string text;
    for (uint32_t value : values) {
        text += (text.empty() ? "" : ", ") + std::to_string(value);
    }
    return text;
}

bool turbo_kv_resolve(const llama_model * model, ggml_type * type_k, ggml_type * type_v, char * why, size_t size) {
    if (turbo_type_is_q(*type_k) || turbo_type_is_q(*type_v)) {
        return refuse(why, size, "turbo_q holds rotated queries and is no KV cache type");
    }
    if (!turbo_type_is(*type_k) && !turbo_type_is(*type_v)) {
        return true;
    }
    const ggml_type asked = turbo_type_is(*type_k) ? *type_k : *type_v;
    const char * name = ggml_type_name(asked);
    const llama_hparams & hparams = model->hparams;
    if (hparams.is_mla() || model->arch == LLM_ARCH_DEEPSEEK4) {
        return refuse(why, size, "%s cannot hold the compressed latent (MLA) cache of this model; use f16", name);
    }
    const std::set<uint32_t> dims = head_dims(hparams);
    int block = 128;
    for (uint32_t dim : dims) {
        if (dim % 64 != 0) {
            return refuse(why, size, "%s stores blocks of 64 or 128 values of one head; this model has head dimensions %s. "
                                     "Use f16, q8_0 or q4_0", name, join(dims).c_str());
        }
        block = dim % 128 != 0 ? 64 : block;
    }
    *type_k = turbo_type_is(*type_k) ? turbo_type_with_block(*type_k, block) : *type_k;
    *type_v = turbo_type_is(*type_v) ? turbo_type_with_block(*type_v, block) : *type_v;
    return true;
}

bool turbo_kv_prepare(const llama_model * model, llama_context_params * params) {
    char why[512];
    if (!turbo_kv_resolve(model, &params->type_k, &params->type_v, why, sizeof(why))) {
        LLAMA_LOG_ERROR("%s: %s\n", __func__, why);
        return false;
    }
    if (!turbo_type_is(params->type_k) && !turbo_type_is(params->type_v)) {
        return true;
    }
    if (params->flash_attn_type == LLAMA_FLASH_ATTN_TYPE_AUTO) {
        params->flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    }
    if (params->flash_attn_type == LLAMA_FLASH_ATTN_TYPE_DISABLED) {
        LLAMA_LOG_ERROR("%s: KV cache type %s needs flash attention\n", __func__,
                ggml_type_name(turbo_type_is(params->type_k) ? params->type_k : params->type_v));
        return false;
    }
    return true;
}
