// One of upstream's fusions, the up and gate products of a feed-forward layer with their activation: what it needs to
// be taken always, and a switch, so that its gain can be measured alone.

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

// Upstream fuses only where the result overlaps no input in memory, which would be chance: the same model would compute
// with other rounding, layer by layer, as its graphs happen to be laid out.
void turbo_cuda_keep_up_gate(ggml_cgraph *cgraph, ggml_backend_graph_optimize_params *params) {
    constexpr int64_t fused_rows = 64; // tokens times experts: batches that are ever fused are short
    for (int i = 0; i < cgraph->n_nodes; i++) {
        ggml_tensor *glu = cgraph->nodes[i];
        if (glu->op != GGML_OP_GLU || glu->src[1] == nullptr || ggml_nrows(glu) > fused_rows) {
            continue;
        }
        for (int j = 0; j < 2; j++) {
            const ggml_tensor *product = glu->src[j];
            while (product->op == GGML_OP_ADD || product->op == GGML_OP_ADD_ID || product->op == GGML_OP_MUL) {
                product = product->src[0]; // bias and scale
            }
            if (product->op != GGML_OP_MUL_MAT && product->op != GGML_OP_MUL_MAT_ID) {
                continue;
            }
            for (ggml_tensor *input : {product->src[1], product->src[2]}) {
                if (input != nullptr) {
                    params->add_alloc_dep(params->user_data, input->view_src != nullptr ? input->view_src : input, glu);
                }
            }
        }
    }
}
