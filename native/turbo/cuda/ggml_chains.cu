// Norms, factors and sums between the products of a decode step or a short batch in a graph: which go into one launch
// of chains.h, and what that asks of the graph's order and memory. As ggml_products.cu.

#include "turbo/cuda/chains.h"
#include "turbo/cuda/ggml_glue.cuh"
#include "turbo/cuda/vector_chains.h"

using namespace turbo_cuda;

void turbo_cuda_gather_norms(ggml_cgraph *cgraph) {
    for (int i = 0; i < cgraph->n_nodes; i++) {
        if (cgraph->nodes[i]->op == GGML_OP_RMS_NORM) {
            gather_norms(cgraph, i);
        }
    }
}

int turbo_cuda_keep_chain(ggml_cgraph *cgraph, ggml_backend_graph_optimize_params *params, int i) {
    vector_chain chain;
    if (!match(cgraph, i, chain)) {
        return 0;
    }
    for (const ggml_tensor *input : inputs_of(chain)) {
        params->add_alloc_dep(params->user_data, const_cast<ggml_tensor *>(base_of(input)), cgraph->nodes[chain.last]);
    }
    return chain.last - i + 1;
}

// Vectors are read and written 16 bytes at a time; views may begin anywhere. Weights may lie in the host's memory.
static bool readable(const ggml_backend_cuda_context &ctx, const ggml_tensor *t) {
    return t->buffer != nullptr && t->buffer->buft == ggml_backend_cuda_buffer_type(ctx.device) &&
           (ggml_nelements(t) == 1 || (uintptr_t) t->data % 16 == 0);
}

static chain_operand operand_of(const ggml_tensor *t, const ggml_tensor *out) {
    chain_operand operand = {};
    if (t != nullptr) {
        operand.x = (const float *) t->data;
        operand.number = ggml_nelements(t) == 1;
        operand.stride = ggml_are_same_shape(t, out) ? t->ne[0] : 0;
        operand.early = t->op == GGML_OP_NONE && t->view_src == nullptr &&
                        ggml_backend_buffer_get_usage(t->buffer) == GGML_BACKEND_BUFFER_USAGE_WEIGHTS;
    }
    return operand;
}

static chain_step step_of(const chain_line &line) {
    chain_step step = {};
    step.start = operand_of(line.start.tensor, line.out), step.start_line = line.start.line;
    step.add = operand_of(line.add.tensor, line.out), step.add_line = line.add.line;
    step.factor = operand_of(line.factor, line.out);
    step.scale = 1.0f;
    if (line.scale != nullptr) {
        memcpy(&step.scale, line.scale->op_params, sizeof(float));
        memcpy(&step.bias, (const float *) line.scale->op_params + 1, sizeof(float));
    }
    if (line.rms != nullptr) {
        step.norm = true;
        memcpy(&step.epsilon, line.rms->op_params, sizeof(float));
    }
    step.out = line.written ? (float *) line.out->data : nullptr;
    return step;
}

int turbo_cuda_fuse_chain(ggml_backend_cuda_context &ctx, const ggml_cgraph *cgraph, int i) {
    vector_chain chain;
    if (!match(cgraph, i, chain) || !apart(chain)) {
        return 0;
    }
    for (const std::vector<const ggml_tensor *> &tensors : {inputs_of(chain), outputs_of(chain)}) {
        for (const ggml_tensor *t : tensors) {
            if (!readable(ctx, t)) {
                return 0;
            }
        }
    }
    chain_args args = {};
    args.lines = chain.n, args.n = chain.line[0].out->ne[0], args.vectors = chain.line[0].out->ne[1];
    for (int l = 0; l < chain.n; l++) {
        args.line[l] = step_of(chain.line[l]);
        args.line[l].same =
            l > 0 && args.line[l].norm && args.line[l - 1].norm && chain.line[l].start == chain.line[l - 1].start;
    }
    CUDA_CHECK(run_chain(args, ctx.stream()));
    return chain.last - i + 1;
}
