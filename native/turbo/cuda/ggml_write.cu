// Writes of K and V: from ggml tensors to the arguments of the kernels, alone or put together with what is around them.

#include "turbo/cuda/ggml_glue.cuh"

#include <algorithm>

using namespace turbo_cuda;

write_tensor turbo_cuda::make_write(const ggml_tensor *src, ggml_tensor *dst) {
    const turbo_type_desc *desc = turbo_desc_of(dst->type); // null: q8_0
    write_tensor w = {};
    w.source = (const char *) src->data;
    w.source_half = src->type == GGML_TYPE_F16;
    w.target = (char *) dst->data;
    for (int i = 0; i < 3; i++) {
        w.source_stride[i] = src->nb[i + 1];
        w.target_stride[i] = dst->nb[i + 1];
    }
    w.format = kv_format_of(dst->type);
    w.block = desc != nullptr ? desc->block : src->ne[0] % 128 == 0 ? 128 : 64;
    w.row_values = src->ne[0];
    w.ne1 = src->ne[1];
    w.ne2 = src->ne[2];
    w.n_rows = src->ne[1] * src->ne[2] * src->ne[3];
    return w;
}

static write_tensor make_set_rows(ggml_tensor *dst) {
    const ggml_tensor *ids = dst->src[1];
    write_tensor w = make_write(dst->src[0], dst);
    w.ids = (const char *) ids->data;
    w.ids_64 = ids->type == GGML_TYPE_I64;
    w.ids_ne[0] = ids->ne[1];
    w.ids_ne[1] = ids->ne[2];
    for (int i = 0; i < 3; i++) {
        w.ids_stride[i] = ids->nb[i];
    }
    w.early = ids->op == GGML_OP_NONE;
    if (dst->src[3] != nullptr) {
        w.early &= dst->src[3]->op == GGML_OP_NONE;
        GGML_ASSERT(dst->src[3]->type == GGML_TYPE_F32 && ggml_nelements(dst->src[3]) == w.row_values);
        w.centre = (const float *) dst->src[3]->data;
    }
    return w;
}

bool turbo_cuda_set_rows(ggml_backend_cuda_context &ctx, ggml_tensor *dst) {
    if (!turbo_type_is(dst->type)) {
        return false;
    }
    CUDA_CHECK(turbo_cuda::write_rows(make_set_rows(dst), nullptr, ctx.stream()));
    return true;
}

// Is this a write that our kernels do? q8_0 counts as well: with keys centred or values beside them, one launch does
// it.
static bool writes_cache(const ggml_tensor *node) {
    if (node->op != GGML_OP_SET_ROWS || !(node->flags & GGML_TENSOR_FLAG_COMPUTE)) {
        return false;
    }
    const ggml_tensor *src = node->src[0];
    const bool q8_0 = node->type == GGML_TYPE_Q8_0 && src->type == GGML_TYPE_F32 && src->nb[0] == sizeof(float) &&
                      src->ne[0] % 64 == 0 && strides_are_multiples(src, sizeof(float)) &&
                      strides_are_multiples(node, 2) && (uintptr_t) node->data % 2 == 0;
    return q8_0 || turbo_type_is(node->type);
}

// The one f32 vector that SUB or MUL node i applies to every row of keys, if only node `next` reads the result (through
// views that keep the rows); null for anything else.
static const float *row_vector(const ggml_cgraph *cgraph, int i, int next, int64_t row_values) {
    const ggml_tensor *node = cgraph->nodes[i], *keys = node->src[0], *vector = node->src[1];
    const bool rows = keys->type == GGML_TYPE_F32 && keys->nb[0] == sizeof(float) && vector->type == GGML_TYPE_F32 &&
                      ggml_is_contiguous(vector) && ggml_nelements(vector) == row_values && keys->ne[3] == 1 &&
                      (keys->ne[0] == row_values ||
                       (keys->ne[0] * keys->ne[1] == row_values && keys->nb[1] == keys->ne[0] * sizeof(float)));
    const ggml_tensor *reads = cgraph->nodes[next]->src[0];
    const bool read = (reads == node || reads->view_src == node) && reads->view_offs == 0 &&
                      ggml_nelements(reads) == ggml_nelements(node);
    return rows && read && ggml_node_has_n_uses(cgraph, i, 1) ? (const float *) vector->data : nullptr;
}

// Read the rows of a write from before node i, which would have been their last change.
static void read_before(write_tensor &w, const ggml_tensor *keys) {
    const int token = keys->ne[0] == w.row_values ? 1 : 2; // dim of the tokens
    w.source = (const char *) keys->data;
    w.source_stride[0] = keys->nb[token];
    w.source_stride[1] = token == 1 ? keys->nb[2] : keys->nb[3];
    w.source_stride[2] = keys->nb[3];
}

// ---- overlap of write and attention
// ------------------------------------------------------------------------------------

noted_write &turbo_cuda::last_write() {
    static thread_local noted_write noted;
    return noted;
}

noted_scale &turbo_cuda::last_scale() {
    static thread_local noted_scale noted;
    return noted;
}

// Row of the whole cache at which the view `cache` of it begins; -1 if the write `w` at `node` goes somewhere else.
static int64_t first_token_of(const ggml_tensor *cache, const ggml_tensor *node, const write_tensor &w) {
    const int64_t offset = (const char *) cache->data - w.target;
    const bool same = base_of(cache) == base_of(node) && offset >= 0 && offset % w.target_stride[0] == 0;
    return same ? offset / w.target_stride[0] : -1;
}

static bool plain_row_list(const write_tensor &w) {
    return w.ids != nullptr && w.ne2 == 1 && w.n_rows == w.ne1 && w.n_rows <= turbo_max_rows;
}

// Note the launch of K and V together; node i is the last it covers.
static void note_write(const ggml_cgraph *cgraph, int i, const ggml_tensor *const (&nodes)[2],
                       const write_tensor (&writes)[2]) {
    const int next = next_computing(cgraph, i);
    const ggml_tensor *attention = next < cgraph->n_nodes ? cgraph->nodes[next] : nullptr;
    if (attention == nullptr || attention->op != GGML_OP_FLASH_ATTN_EXT || attention->src[0]->ne[3] != 1) {
        return;
    }
    noted_write noted = {attention, {}};
    noted.write.n_rows = writes[0].n_rows;
    noted.write.first_token = first_token_of(attention->src[1], nodes[0], writes[0]);
    noted.write.blocks = write_blocks(writes[0], &writes[1]);
    noted.write.factor = writes[0].factor;
    noted.write.centre = writes[0].centre;
    for (int t = 0; t < 2; t++) {
        const write_tensor &w = writes[t];
        if (!plain_row_list(w) || w.n_rows != noted.write.n_rows || w.source_half || w.source_stride[0] % 8 != 0 ||
            (uintptr_t) w.source % 8 != 0 || noted.write.first_token < 0 ||
            first_token_of(attention->src[1 + t], nodes[t], w) != noted.write.first_token) {
            return;
        }
        noted.write.source[t] = w.source;
        noted.write.source_stride[t] = w.source_stride[0];
        noted.write.ids[t] = w.ids;
        noted.write.ids_stride[t] = w.ids_stride[0];
        noted.write.ids_64[t] = w.ids_64;
    }
    last_write() = noted;
}

// Does node i take from keys the centres of the runs they are written to by node `next`, which alone reads the result?
static bool centres_rows(const ggml_cgraph *cgraph, int i, int next) {
    const ggml_tensor *node = cgraph->nodes[i], *write = cgraph->nodes[next], *ids = node->src[2];
    return subtracts_runs(node) && write->src[0] == node && write->src[1]->data == ids->data &&
           write->src[1]->type == ids->type && write->src[1]->ne[0] == ids->ne[0] && ggml_node_has_n_uses(cgraph, i, 1);
}

// Launch K's or V's write that begins at node i together with what comes before it (keys are scaled, then centred) and
// the other write after it. Returns the last node covered, -1 if there is nothing to put together.
static int fuse_write(ggml_backend_cuda_context &ctx, const ggml_cgraph *cgraph, int i) {
    int at = i, nodes[2] = {-1, -1}; // MUL, and SUB or the centres of runs
    for (int n = 0; n < 2 && at < cgraph->n_nodes; n++) {
        const ggml_tensor *node = cgraph->nodes[at];
        if (n == 0 ? node->op == GGML_OP_MUL : node->op == GGML_OP_SUB || subtracts_runs(node)) {
            nodes[n] = at;
            at = next_computing(cgraph, at);
        }
    }
    if (at >= cgraph->n_nodes || !writes_cache(cgraph->nodes[at])) {
        return -1;
    }
    ggml_tensor *first = cgraph->nodes[at];
    write_tensor k = make_set_rows(first);
    for (int n = 1, next = at; n >= 0; n--) {
        if (nodes[n] < 0) {
            continue;
        }
        const ggml_tensor *node = cgraph->nodes[nodes[n]];
        if (n == 1 && subtracts_runs(node)) {
            if (!centres_rows(cgraph, nodes[n], next)) {
                return -1;
            }
            k.runs = runs_of(node->src[1]);
        } else {
            const float *vector = row_vector(cgraph, nodes[n], next, k.row_values);
            if (vector == nullptr) {
                return -1;
            }
            (n == 0 ? k.factor : k.centre) = vector;
            k.early &= base_of(node->src[1])->op == GGML_OP_NONE;
        }
        read_before(k, node->src[0]);
        next = nodes[n];
    }
    const int next = next_computing(cgraph, at);
    ggml_tensor *second = next < cgraph->n_nodes ? cgraph->nodes[next] : nullptr;
    const bool pair =
        second != nullptr && writes_cache(second) && first->data != second->data && second->src[0]->data != first->data;
    if (!pair && at == i) {
        return -1;
    }
    const write_tensor v = pair ? make_set_rows(second) : write_tensor{};
    if (pair) {
        note_write(cgraph, next, {first, second}, {k, v});
        const noted_write &noted = last_write();
        if (noted.attention != nullptr && noted.write.n_rows == 1 &&
            attention_takes_newest(ctx.device, noted.attention, noted.write)) {
            put_off(noted.attention, k, v);
            return next;
        }
    }
    CUDA_CHECK(turbo_cuda::write_rows(k, pair ? &v : nullptr, ctx.stream()));
    return pair ? next : at;
}

// The attention that can scale its queries itself instead of MUL node i: it follows with nothing but a write between,
// and the product would have lain where the queries are. Null if there is none.
static const ggml_tensor *scales_own_queries(const ggml_backend_cuda_context &ctx, const ggml_cgraph *cgraph, int i) {
    const ggml_tensor *node = cgraph->nodes[i], *queries = node->src[0], *scale = node->src[1];
    if (node->op != GGML_OP_MUL || node->data != queries->data || !ggml_node_has_n_uses(cgraph, i, 1) ||
        scale->type != GGML_TYPE_F32 || !ggml_is_contiguous(scale)) {
        return nullptr;
    }
    int at = next_computing(cgraph, i);
    for (int n = 0; n < 6 && at < cgraph->n_nodes; n++, at = next_computing(cgraph, at)) {
        const ggml_tensor *next = cgraph->nodes[at];
        if (next->op == GGML_OP_FLASH_ATTN_EXT) {
            const bool ours = next->src[0]->view_src == node && turbo_cuda_fattn_supported(ctx.device, next) &&
                              ggml_nelements(scale) == next->src[0]->ne[0] * next->src[0]->ne[2];
            return ours ? next : nullptr;
        }
        if (next->op != GGML_OP_MUL && next->op != GGML_OP_SUB && next->op != GGML_OP_SET_ROWS &&
            !subtracts_runs(next)) {
            return nullptr;
        }
    }
    return nullptr;
}

// The node of which all is done though none behind it is.
static const ggml_tensor *&done_alone() {
    static thread_local const ggml_tensor *node = nullptr;
    return node;
}

bool turbo_cuda_is_done(const ggml_tensor *node) {
    return node == done_alone();
}

int turbo_cuda_try_fuse(ggml_backend_cuda_context &ctx, ggml_cgraph *cgraph, int i) {
    last_stream() = ctx.stream();
    done_alone() = nullptr;
    if (!ggml_op_is_empty(cgraph->nodes[i]->op) && cgraph->nodes[i] != last_write().attention) {
        last_write().attention = nullptr; // something else comes between
    }
    join_before(ctx, cgraph->nodes[i]);
    if (const int n = turbo_cuda_split_up_gate(ctx, cgraph, i)) {
        return n;
    }
    // with concurrent streams, V may be computed on another one
    if (ctx.curr_stream_no != 0) {
        return 0;
    }
    if (const int n = turbo_cuda_fuse_products(ctx, cgraph, i)) {
        done_alone() = n == 1 ? cgraph->nodes[i] : nullptr;
        return n - 1;
    }
    const ggml_tensor *attention = scales_own_queries(ctx, cgraph, i);
    const int last = fuse_write(ctx, cgraph, attention != nullptr ? next_computing(cgraph, i) : i);
    if (last < 0) {
        return 0;
    }
    if (attention != nullptr) {
        last_scale() = {attention, (const float *) cgraph->nodes[i]->src[1]->data};
    }
    return last - i;
}
