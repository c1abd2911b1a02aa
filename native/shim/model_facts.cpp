// What a loaded model says about itself: sizes, per-layer KV facts, GGUF metadata.
#include "handles.h"

#include "llama-arch.h"
#include "llama-ext.h"
#include "llama-model.h"

#include "ggml-backend.h"

#include <cstring>
#include <string>

namespace {

// Whether the layer has cache tensors: recurrent layers of a hybrid keep a state instead.
bool layer_has_kv(const llama_model & model, uint32_t il) {
    if (llama_model_is_recurrent(&model) || !model.hparams.has_kv(il)) {
        return false;
    }
    return !(llama_model_is_hybrid(&model) && model.hparams.is_recr(il));
}

// llama.cpp's metadata readers return the length they need and want room for a terminator.
template <typename F> std::string read_meta(F && read) {
    char small[256];
    const int32_t n = read(small, sizeof(small));
    if (n < 0) {
        return "";
    }
    if ((size_t) n < sizeof(small)) {
        return std::string(small, (size_t) n);
    }
    std::string text((size_t) n + 1, '\0');
    read(&text[0], text.size());
    text.resize((size_t) n);
    return text;
}

int32_t check_meta_index(const turbo_model * model, int32_t index) {
    const int32_t n = llama_model_meta_count(model->model);
    if (index < 0 || index >= n) {
        return turbo_fail(TURBO_E_ARGUMENT, "metadata entry %d of %d", index, n);
    }
    return TURBO_OK;
}

}  // namespace

int32_t turbo_model_get_facts(const turbo_model * model, turbo_model_facts * out) {
    return turbo_guard("model_facts", [&] {
        const llama_model * m = model->model;
        *out = turbo_model_facts{};
        out->n_vocab = model->n_vocab;
        turbo_copy_name(out->arch, sizeof(out->arch), llm_arch_name(m->arch));
        if (m->hparams.vocab_only) {
            return (int32_t) TURBO_OK;  // sizes were not read, and asking for a layer's heads would abort
        }
        out->n_layer = llama_model_n_layer(m);
        out->n_layer_nextn = llama_model_n_layer_nextn(m);
        out->n_embd = llama_model_n_embd(m);
        out->n_head = llama_model_n_head(m);
        out->n_head_kv = llama_model_n_head_kv(m);
        out->n_ctx_train = llama_model_n_ctx_train(m);
        out->n_swa = llama_model_n_swa(m);
        out->n_expert = llama_model_n_expert(m);
        out->rope_type = llama_model_rope_type(m);
        out->size_bytes = (int64_t) llama_model_size(m);
        out->n_params = (int64_t) llama_model_n_params(m);
        out->has_encoder = llama_model_has_encoder(m);
        out->has_decoder = llama_model_has_decoder(m);
        out->is_recurrent = llama_model_is_recurrent(m);
        out->is_hybrid = llama_model_is_hybrid(m);
        out->is_mla = m->hparams.is_mla();
        out->is_diffusion = llama_model_is_diffusion(m);
        llama_model_desc(m, out->description, sizeof(out->description));
        turbo_copy_name(out->ftype, sizeof(out->ftype), llama_ftype_name(llama_model_ftype(m)));
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_model_get_layer(const turbo_model * model, int32_t layer, turbo_layer_facts * out) {
    const llama_model * m = model->model;
    const llama_hparams & hparams = m->hparams;
    if (layer < 0 || (uint32_t) layer >= hparams.n_layer_all) {
        return turbo_fail(TURBO_E_ARGUMENT, "layer %d of %u", layer, hparams.n_layer_all);
    }
    return turbo_guard("model_layer", [&] {
        const uint32_t il = (uint32_t) layer;
        *out = turbo_layer_facts{};
        out->has_kv = layer_has_kv(*m, il);
        out->is_swa = hparams.is_swa(il);
        out->is_recurrent = hparams.is_recr(il);
        out->n_head = (int32_t) hparams.n_head(il);
        out->n_head_kv = (int32_t) hparams.n_head_kv(il);
        out->head_dim_k = (int32_t) hparams.n_embd_head_k(il);
        out->head_dim_v = hparams.is_mla() ? 0 : (int32_t) hparams.n_embd_head_v(il);
        out->n_rot = (int32_t) hparams.n_rot(il);
        if (!hparams.vocab_only) {
            ggml_backend_dev_t dev = m->dev_layer(layer);
            turbo_copy_name(out->device, sizeof(out->device), dev ? ggml_backend_dev_name(dev) : "CPU");
        }
        return (int32_t) TURBO_OK;
    });
}

int32_t turbo_model_tensor_buffer(const turbo_model * model, const char * name, char * buf, int32_t size) {
    return turbo_guard("tensor_buffer", [&]() -> int32_t {
        const ggml_tensor * tensor = model->model->get_tensor(name);
        const bool placed = tensor && tensor->buffer;
        return turbo_copy_text(placed ? ggml_backend_buft_name(ggml_backend_buffer_get_type(tensor->buffer)) : "", buf,
                               size);
    });
}

int32_t turbo_model_meta_count(const turbo_model * model) {
    return llama_model_meta_count(model->model);
}

int32_t turbo_model_meta_key(const turbo_model * model, int32_t index, char * buf, int32_t size) {
    return turbo_guard("model_meta_key", [&]() -> int32_t {
        const int32_t status = check_meta_index(model, index);
        return status != TURBO_OK ? status : turbo_copy_text(read_meta([&](char * dst, size_t n) {
            return llama_model_meta_key_by_index(model->model, index, dst, n);
        }), buf, size);
    });
}

int32_t turbo_model_meta_value(const turbo_model * model, int32_t index, char * buf, int32_t size) {
    return turbo_guard("model_meta_value", [&]() -> int32_t {
        const int32_t status = check_meta_index(model, index);
        return status != TURBO_OK ? status : turbo_copy_text(read_meta([&](char * dst, size_t n) {
            return llama_model_meta_val_str_by_index(model->model, index, dst, n);
        }), buf, size);
    });
}
