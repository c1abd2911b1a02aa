// The products of a decode step or a short batch in a graph: which nodes go into one launch of products.h, and what
// that asks of the graph's order and memory. A group is found by its structure alone, so that the same one is found
// before memory is laid out (turbo_cuda_order) and when it runs (turbo_cuda_fuse_products).

#include "turbo/cuda/ggml_glue.cuh"
#include "turbo/cuda/product_groups.h"
#include "turbo/cuda/products.h"

#include <cstdlib>

using namespace turbo_cuda;

// Read once: a captured graph could not follow a change.
static bool products_are_joined() {
    static const bool joined = [] {
        const char *value = getenv("TURBO_FUSED_PRODUCTS"), *streams = getenv("GGML_CUDA_GRAPH_OPT");
        // llama.cpp's own way, queries, keys and values on streams of their own, wants them apart
        return (value == nullptr || atoi(value) != 0) && (streams == nullptr || atoi(streams) != 1);
    }();
    return joined;
}

// ---- before memory is laid out
// ----------------------------------------------------------------------------------------

void turbo_cuda_order(ggml_cgraph *cgraph, ggml_backend_graph_optimize_params *params) {
    if (!products_are_joined()) {
        return;
    }
    for (int i = 0; i < cgraph->n_nodes; i++) {
        if (cgraph->nodes[i]->op == GGML_OP_MUL && is_vectors(cgraph->nodes[i])) {
            gather_products(cgraph, i);
        }
    }
    turbo_cuda_order_ropes(cgraph, params);
    for (int i = 0; i < cgraph->n_nodes; i++) {
        product_group group;
        if (!match(cgraph, i, group)) {
            continue;
        }
        for (const ggml_tensor *input : inputs_of(group)) {
            params->add_alloc_dep(params->user_data, const_cast<ggml_tensor *>(base_of(input)),
                                  cgraph->nodes[group.last]);
        }
        i = group.last;
    }
}

// ---- when it runs
// ----------------------------------------------------------------------------------------

// Nothing that is written may be read or written by another thread block, but for a sum in the place of what is added.
static bool apart(const product_group &group) {
    const std::vector<const ggml_tensor *> inputs = inputs_of(group), outputs = outputs_of(group);
    for (size_t o = 0; o < outputs.size(); o++) {
        for (const ggml_tensor *input : inputs) {
            const bool in_place = o < (size_t) group.n && input == group.matrix[o].add && input != group.x &&
                                  outputs[o]->data == input->data;
            if (overlap(outputs[o], input) && !in_place) {
                return false;
            }
        }
        for (size_t other = 0; other < o; other++) {
            if (overlap(outputs[o], outputs[other])) {
                return false;
            }
        }
    }
    return true;
}

// Vectors are read and written 16 bytes at a time; views may begin anywhere.
static bool aligned(const product_group &group) {
    for (const ggml_tensor *t : {group.x, group.norm, group.normed}) {
        if (t != nullptr && (uintptr_t) t->data % 16 != 0) {
            return false;
        }
    }
    return true;
}

static bool on_device(const ggml_backend_cuda_context &ctx, const ggml_tensor *w) {
    return w->buffer != nullptr && w->buffer->buft == ggml_backend_cuda_buffer_type(ctx.device) &&
           (uintptr_t) w->data % 16 == 0;
}

static product_matrix matrix_of(const product_group::part &m) {
    product_matrix p = {};
    p.row_bytes = m.weight->nb[1], p.expert_bytes = m.weight->nb[2];
    p.weight = (const char *) m.weight->data + m.weight_offset * p.row_bytes;
    p.gate = m.gate != nullptr ? (const char *) m.gate->data : nullptr;
    p.out = (float *) m.out->data;
    p.add = m.add != nullptr ? (const float *) m.add->data : nullptr;
    p.rows = m.rows;
    return p;
}

int turbo_cuda_fuse_products(ggml_backend_cuda_context &ctx, const ggml_cgraph *cgraph, int i) {
    if (!products_are_joined()) {
        return 0;
    }
    if (const int n = turbo_cuda_fuse_ropes(ctx, cgraph, i)) {
        return n;
    }
    product_group group;
    if (!match(cgraph, i, group) || !apart(group) || !aligned(group)) {
        return 0;
    }
    for (int m = 0; m < group.n; m++) {
        const product_group::part &x = group.matrix[m];
        if (!on_device(ctx, x.weight) || (x.gate != nullptr && !on_device(ctx, x.gate))) {
            return 0;
        }
    }
    if (group.scale != nullptr && !on_device(ctx, group.scale)) {
        return 0;
    }
    const ggml_tensor *weight = group.matrix[0].weight;
    const int vectors = group.ids != nullptr ? group.ids->ne[1] : group.x->ne[1];
    const int64_t ids_stride = group.ids != nullptr ? group.ids->nb[1] / sizeof(int32_t) : 0;
    const ggml_cuda_device_info::cuda_device_info &device = ggml_cuda_info().devices[ctx.device];
    const int staging = ggml_cuda_highest_compiled_arch(device.cc) >= GGML_CUDA_CC_HOPPER ? (int) device.smpbo : 0;
    if (group.mix != nullptr) {
        const product_matrix m = matrix_of(group.matrix[0]);
        mix_args args = {};
        args.type = weight->type;
        args.x = (const float *) group.x->data, args.ids = (const int32_t *) group.ids->data;
        args.weights = (const float *) group.mix->data, args.add = m.add, args.out = m.out;
        args.scale = group.scale != nullptr ? (const float *) group.scale->data : nullptr;
        args.weight = m.weight, args.row_bytes = m.row_bytes, args.expert_bytes = m.expert_bytes;
        args.vectors = vectors, args.ids_stride = ids_stride;
        args.used = group.ids->ne[0], args.columns = weight->ne[0], args.rows = m.rows;
        args.staging = staging;
        CUDA_CHECK(mix_experts(args, ctx.stream()));
        return group.last - i + 1;
    }
    products_args args = {};
    args.type = weight->type;
    args.x = (const float *) group.x->data;
    if (group.rms != nullptr) {
        args.norm = (const float *) group.norm->data;
        memcpy(&args.epsilon, group.rms->op_params, sizeof(float));
        args.normed = group.normed != nullptr ? (float *) group.normed->data : nullptr;
    }
    args.vectors = vectors;
    args.ids = group.ids != nullptr ? (const int32_t *) group.ids->data : nullptr, args.ids_stride = ids_stride;
    find_next(cgraph, group);
    if (group.next != nullptr && on_device(ctx, group.next)) {
        args.next = (const char *) group.next->data, args.next_bytes = group.next->nb[2];
    }
    args.used = group.ids != nullptr ? group.ids->ne[0] : 1;
    args.gated = group.gated;
    args.columns = weight->ne[0], args.n = group.n;
    args.multiprocessors = device.nsm;
    args.staging = staging;
    for (int m = 0; m < group.n; m++) {
        args.matrix[m] = matrix_of(group.matrix[m]);
    }
    if (!products_pay(args)) {
        return 0;
    }
    CUDA_CHECK(products(args, ctx.stream()));
    return group.last - i + 1;
}
