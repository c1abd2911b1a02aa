// The switch of one of upstream's fusions, so that its gain can be measured alone.

#include "turbo/cuda/turbo_cuda.cuh"

#include "mmvq.cuh"

#include <cstdlib>

// Read once: a captured graph could not follow a change.
static bool up_gate_stays_fused() {
    static const bool fused = [] {
        const char *value = getenv("TURBO_FUSED_UP_GATE");
        return value == nullptr || atoi(value) != 0;
    }();
    return fused;
}

static bool is_expert_product(const ggml_tensor *t) {
    return t->op == GGML_OP_MUL_MAT_ID && (t->flags & GGML_TENSOR_FLAG_COMPUTE) && ggml_is_quantized(t->src[0]->type) &&
           t->src[1]->type == GGML_TYPE_F32 && t->type == GGML_TYPE_F32 &&
           t->ne[2] <= get_mmvq_mmid_max_batch(t->src[0]->type, ggml_cuda_info().devices[ggml_cuda_get_device()].cc);
}

int turbo_cuda_split_up_gate(ggml_backend_cuda_context &ctx, ggml_cgraph *cgraph, int i) {
    if (up_gate_stays_fused() || i + 2 >= cgraph->n_nodes) {
        return 0;
    }
    ggml_tensor *first = cgraph->nodes[i], *second = cgraph->nodes[i + 1];
    const ggml_tensor *glu = cgraph->nodes[i + 2];
    const bool joined = glu->op == GGML_OP_GLU && ((glu->src[0] == first && glu->src[1] == second) ||
                                                   (glu->src[0] == second && glu->src[1] == first));
    if (!joined || !is_expert_product(first) || !is_expert_product(second)) {
        return 0;
    }
    for (ggml_tensor *product : {first, second}) { // what upstream runs for each of them where nothing is fused
        ggml_cuda_mul_mat_vec_q(ctx, product->src[0], product->src[1], product->src[2], product);
    }
    return 1;
}
