#include "turbo/llama/kv_center.h"

#include "llama-kv-cells.h"
#include "turbo/llama/kv_runs.h"

#include <algorithm>

// A context for one tensor.
static ggml_context_ptr context_of_one() {
    const ggml_init_params params = { ggml_tensor_overhead(), nullptr, /*no_alloc*/ true };
    return ggml_context_ptr(ggml_init(params));
}

bool turbo_kv_centers::place(ggml_context_ptr ctx, ggml_backend_buffer_type_t buft, ggml_tensor * tensor, const void * values) {
    if (only_measured) {
        measured[buft] += ggml_backend_alloc_ctx_tensors_from_buft_size(ctx.get(), buft);
        contexts.push_back(std::move(ctx));
        return true;
    }
    ggml_backend_buffer_ptr buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft));
    if (!buffer) {
        return false;
    }
    ggml_backend_tensor_set(tensor, values, 0, ggml_nbytes(tensor));
    contexts.push_back(std::move(ctx));
    buffers.push_back(std::move(buffer));
    return true;
}

bool turbo_kv_centers::add(kind what, uint32_t il, const float * values, int64_t n, ggml_backend_buffer_type_t buft) {
    ggml_context_ptr ctx = context_of_one();
    if (!ctx) {
        return false;
    }
    ggml_tensor * tensor = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, n);
    static const char * const names[kinds] = { "k_center", "k_scale", "q_scale" };
    ggml_format_name(tensor, "%s_l%u", names[what], il);
    if (!place(std::move(ctx), buft, tensor, values)) {
        return false;
    }
    by_layer[what][il] = tensor;
    return true;
}

bool turbo_kv_centers::add_runs(uint32_t il, const ggml_tensor * k, const std::vector<float> & values, uint32_t cells_each) {
    const int64_t n_runs = (k->ne[1] + cells_each - 1) / cells_each;
    ggml_context_ptr ctx = context_of_one();
    if (!ctx) {
        return false;
    }
    ggml_tensor * tensor = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F16, k->ne[0], n_runs + 1);
    ggml_format_name(tensor, "k_centers_l%u", il);
    turbo_runs_describe(tensor, (int32_t) cells_each, (int32_t) k->ne[1]);
    std::vector<ggml_fp16_t> halves(values.size());
    ggml_fp32_to_fp16_row(values.data(), halves.data(), (int64_t) values.size());
    if (!place(std::move(ctx), ggml_backend_buffer_get_type(k->buffer), tensor, halves.data())) {
        return false;
    }
    by_layer[center][il] = tensor;
    runs[k] = tensor;
    return true;
}

void turbo_kv_centers::count(std::map<ggml_backend_buffer_type_t, size_t> & bytes) const {
    for (const auto & [buft, size] : measured) {
        bytes[buft] += size;
    }
    for (const ggml_backend_buffer_ptr & buffer : buffers) {
        bytes[ggml_backend_buffer_get_type(buffer.get())] += ggml_backend_buffer_get_size(buffer.get());
    }
}

bool turbo_kv_centers::flat() const {
    return !runs.empty() && turbo_runs_flat(runs.begin()->second);
}

void turbo_kv_centers::set_flat(bool flat) {
    for (const auto & [k, tensor] : runs) {
        turbo_runs_set_flat(tensor, flat);
    }
}

static ggml_tensor * find(const turbo_kv_centers * centers, turbo_kv_centers::kind what, uint32_t il) {
    if (centers == nullptr) {
        return nullptr;
    }
    const auto found = centers->by_layer[what].find(il);
    return found == centers->by_layer[what].end() ? nullptr : found->second;
}

ggml_tensor * turbo_kv_apply(ggml_context * ctx, const turbo_kv_centers * centers, turbo_kv_centers::kind what, uint32_t il,
                             ggml_tensor * keys, turbo_kv_operation operation) {
    ggml_tensor * v = find(centers, what, il);
    if (v == nullptr) {
        return keys;
    }
    if (keys->ne[0] != v->ne[0]) { // the shape that broadcasts over the tokens
        v = ggml_reshape_2d(ctx, v, keys->ne[0], v->ne[0] / keys->ne[0]);
    }
    return operation(ctx, keys, v);
}

// The centres of runs of layer `il`; null if it has one centre or none.
static ggml_tensor * runs_of(const turbo_kv_centers * centers, uint32_t il) {
    ggml_tensor * c = find(centers, turbo_kv_centers::center, il);
    return c != nullptr && turbo_runs_cells_each(c) != 0 ? c : nullptr;
}

ggml_tensor * turbo_kv_center(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys,
                              ggml_tensor * cells) {
    if (ggml_tensor * runs = runs_of(centers, il)) {
        return cells != nullptr ? turbo_runs_subtract(ctx, runs, keys, cells) : turbo_runs_flatten(ctx, runs, keys);
    }
    return turbo_kv_apply(ctx, centers, turbo_kv_centers::center, il, keys, ggml_sub);
}

ggml_tensor * turbo_kv_uncenter(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys) {
    if (ggml_tensor * runs = runs_of(centers, il)) {
        return turbo_runs_add(ctx, runs, keys);
    }
    return turbo_kv_apply(ctx, centers, turbo_kv_centers::center, il, keys, ggml_add);
}

void turbo_kv_begin(turbo_kv_centers * centers, const std::vector<llama_kv_cells> & streams) {
    if (centers == nullptr || !centers->flat()) {
        return;
    }
    if (std::all_of(streams.begin(), streams.end(), [](const llama_kv_cells & cells) { return cells.get_used() == 0; })) {
        centers->set_flat(false);
    }
}

ggml_tensor * turbo_kv_view(const turbo_kv_centers * centers, const ggml_tensor * k, ggml_tensor * view) {
    const auto found = centers == nullptr ? decltype(centers->runs.end())() : centers->runs.find(k);
    return centers == nullptr || found == centers->runs.end() ? view : turbo_runs_mark(view, found->second);
}
