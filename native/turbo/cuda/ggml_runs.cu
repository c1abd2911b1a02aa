// Centres of runs of cells (turbo/kv_runs.h) in ggml's graph: the operators that take them from keys or put them back,
// and keys that upstream's attention is to read.

#include "turbo/cuda/ggml_glue.cuh"

#include "ggml-impl.h"

#include <mutex>
#include <unordered_map>

using namespace turbo_cuda;

key_runs turbo_cuda::runs_of(const ggml_tensor *runs) {
    key_runs r = {};
    if (runs != nullptr) {
        GGML_ASSERT(turbo_runs_are(runs));
        const bool flat = turbo_runs_flat(runs);
        const int64_t last = runs->ne[1] - 1;
        r.rows = (const char *) runs->data + (flat ? last * runs->nb[1] : 0);
        r.stride = runs->nb[1], r.n_rows = flat ? 1 : (int) last;
        r.cells_each = flat ? 0 : turbo_runs_cells_each(runs);
        r.stream_cells = turbo_runs_cells_of_stream(runs);
    }
    return r;
}

static bool lie_on(int device, const ggml_tensor *runs) {
    return runs->buffer != nullptr &&
           ggml_backend_buffer_get_type(runs->buffer) == ggml_backend_cuda_buffer_type(device);
}

bool turbo_cuda::runs_fit(int device, const ggml_tensor *runs, const ggml_tensor *k) {
    if (runs == nullptr) {
        return true;
    }
    return turbo_runs_are(runs) && lie_on(device, runs) && runs->type == GGML_TYPE_F16 && runs->nb[0] == sizeof(half) &&
           runs->ne[0] == k->ne[0] * k->ne[2] && k->ne[0] % 64 == 0 &&
           turbo_runs_cells_each(runs) % TURBO_RUN_STEP == 0 &&
           (runs->ne[1] - 1) * turbo_runs_cells_each(runs) >= k->ne[1];
}

bool turbo_cuda::changes_keys(const ggml_tensor *node) {
    return (node->op == GGML_OP_MAP_CUSTOM2 || node->op == GGML_OP_MAP_CUSTOM3) && turbo_runs_are(node->src[1]);
}

bool turbo_cuda::subtracts_runs(const ggml_tensor *node) {
    return node->op == GGML_OP_MAP_CUSTOM3 && changes_keys(node);
}

bool turbo_cuda::key_change_supported(int device, const ggml_tensor *node) {
    const ggml_tensor *keys = node->src[0];
    return lie_on(device, node->src[1]) && keys->type == GGML_TYPE_F32 && keys->nb[0] == sizeof(float);
}

// Keys as rows of all their heads: [values, tokens] to be written, or [head_dim, heads, cells] of a whole cache.
bool turbo_cuda_change_keys(ggml_backend_cuda_context &ctx, ggml_tensor *dst) {
    if (!changes_keys(dst)) {
        return false;
    }
    const ggml_tensor *keys = dst->src[0], *ids = dst->src[2];
    ggml_tensor *runs = dst->src[1];
    const int token = dst->op == GGML_OP_MAP_CUSTOM3 ? 1 : 2; // dim
    run_change change = {};
    change.source = (const float *) keys->data, change.target = (float *) dst->data;
    change.source_stride = keys->nb[token] / sizeof(float), change.target_stride = dst->nb[token] / sizeof(float);
    change.row_values = runs->ne[0], change.n_rows = dst->ne[token];
    change.runs = runs_of(runs);
    change.sign = -1.0f;
    if (dst->op == GGML_OP_MAP_CUSTOM3) {
        change.ids = (const int64_t *) ids->data;
    } else {
        ggml_map_custom2_op_params params;
        memcpy(&params, dst->op_params, sizeof(params));
        if ((turbo_runs_change) (intptr_t) params.userdata == TURBO_RUNS_ADD) {
            change.sign = 1.0f;
        } else { // what is launched from now on finds the keys so
            turbo_runs_set_flat(runs, true);
            change.runs = runs_of(runs);
        }
    }
    CUDA_CHECK(change_by_runs(change, ctx.stream()));
    return true;
}

bool turbo_cuda_keys_are_whole(int device, const ggml_tensor *dst, bool lifted) {
    const ggml_tensor *runs = dst->src[TURBO_RUNS_SRC], *k = dst->src[1];
    return runs == nullptr ||
           (lifted && ggml_is_quantized(k->type) && kv_format_of(k->type) >= 0 && runs_fit(device, runs, k));
}

// ---- lifting
// ---------------------------------------------------------------------------------------------------------

static const ggml_tensor *&lifting() { // the attention, of this thread
    static thread_local const ggml_tensor *attention = nullptr;
    return attention;
}

turbo_cuda_lifting::turbo_cuda_lifting(const ggml_tensor *dst) : before(lifting()) {
    lifting() = dst != nullptr && dst->src[TURBO_RUNS_SRC] != nullptr ? dst : nullptr;
}

turbo_cuda_lifting::~turbo_cuda_lifting() {
    lifting() = before;
}

bool turbo_cuda::lifts_keys(ggml_type type) {
    return lifting() != nullptr && lifting()->src[1]->type == type;
}

// Keys of a type of upstream's, without their centres.
static void lift_plain(const ggml_tensor *k, half *y, bool contiguous, cudaStream_t stream) {
    const turbo_cuda_lifting upstream(nullptr);
    const size_t block = ggml_type_size(k->type);
    if (contiguous) {
        ggml_get_to_fp16_cuda(k->type)(k->data, y, ggml_nelements(k), stream);
    } else {
        ggml_get_to_fp16_nc_cuda(k->type)(k->data, y, k->ne[0], k->ne[1], k->ne[2], k->ne[3], k->nb[1] / block,
                                          k->nb[2] / block, k->nb[3] / block, stream);
    }
}

bool turbo_cuda::lift_keys(const void *x, half *y, bool contiguous, cudaStream_t stream) {
    const ggml_tensor *attention = lifting();
    if (attention == nullptr || attention->src[1]->data != x) {
        return false;
    }
    const ggml_tensor *k = attention->src[1];
    const turbo_type_desc *desc = turbo_desc_of(k->type);
    read_tensor r = desc != nullptr ? make_read(desc, x, y, true) : read_tensor{};
    r.target = (char *) y;
    r.row_values = k->ne[0], r.ne1 = k->ne[1], r.ne2 = k->ne[2], r.n_rows = ggml_nrows(k);
    r.runs = runs_of(attention->src[TURBO_RUNS_SRC]);
    int64_t values = k->ne[0];
    for (int i = 0; i < 3; i++) {
        r.source_stride[i] = k->nb[i + 1];
        const int64_t lie = k->nb[i + 1] / ggml_type_size(k->type) * ggml_blck_size(k->type);
        r.target_stride[i] = (contiguous ? lie : values) * sizeof(half);
        values *= k->ne[i + 1];
    }
    if (desc != nullptr) {
        CUDA_CHECK(lift_rows(r, stream));
    } else {
        lift_plain(k, y, contiguous, stream);
        CUDA_CHECK(add_runs(r, stream));
    }
    return true;
}

// ---- recorded graphs
// -------------------------------------------------------------------------------------------------

bool turbo_cuda_runs_changed(const void *graph) {
    static std::mutex lock;
    static std::unordered_map<const void *, uint64_t> seen; // one of a freed graph says at worst that something changed
    const uint64_t now = turbo_runs_changes;
    const std::lock_guard<std::mutex> guard(lock);
    uint64_t &last = seen[graph];
    const bool changed = last != now;
    last = now;
    return changed;
}
