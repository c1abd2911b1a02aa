// From ggml tensors to the arguments of the kernels. With up_gate.cu the only file here that knows ggml.

#include "turbo/cuda/turbo_cuda.cuh"

#include "turbo/cuda/attend.h"
#include "turbo/cuda/write.h"
#include "turbo/types.h"

#include <algorithm>

using turbo_cuda::attend_args;
using turbo_cuda::attend_plan;
using turbo_cuda::kv_tensor;
using turbo_cuda::read_tensor;
using turbo_cuda::write_tensor;

// Query columns (rows x query heads of a KV head) up to which reading the packed cache beats lifting it.
static constexpr int64_t turbo_max_columns = 64;
static constexpr int64_t turbo_max_rows = 16;

static int format_of(const turbo_type_desc *desc) {
    return desc->index / 2; // types.h lists each family with both block sizes, in the order of kv_format
}

// Format of a K or V that our attention reads, -1 for others.
static int kv_format_of(ggml_type type) {
    switch (type) {
        case GGML_TYPE_F16: return turbo_cuda::KV_F16;
        case GGML_TYPE_Q8_0: return turbo_cuda::KV_Q8_0;
        case GGML_TYPE_Q4_0: return turbo_cuda::KV_Q4_0;
        default: return turbo_type_is(type) ? format_of(turbo_desc_of(type)) : -1;
    }
}

static bool strides_are_multiples(const ggml_tensor *t, size_t unit) {
    return t->nb[1] % unit == 0 && t->nb[2] % unit == 0 && t->nb[3] % unit == 0;
}

bool turbo_cuda_is_kv_type(ggml_type type) {
    return turbo_type_is(type);
}

// ---- writing
// ---------------------------------------------------------------------------------------------------------

static write_tensor make_write(const ggml_tensor *src, ggml_tensor *dst) {
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
    if (dst->src[3] != nullptr) {
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

// The next node after i that computes something, n_nodes if there is none.
static int next_computing(const ggml_cgraph *cgraph, int i) {
    do {
        i++;
    } while (i < cgraph->n_nodes && ggml_op_is_empty(cgraph->nodes[i]->op));
    return i;
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

// The attention that follows a write directly may start beside it (attend.h). Noted when the write is launched, taken
// by that attention when it is: a thread enqueues one graph at a time.
struct noted_write {
    const ggml_tensor *attention;
    turbo_cuda::pending_write write;
};
static thread_local noted_write last_write;

// Likewise the scale of its queries, where the product was left to it.
struct noted_scale {
    const ggml_tensor *attention;
    const float *scale;
};
static thread_local noted_scale last_scale;

static const ggml_tensor *base_of(const ggml_tensor *t) {
    return t->view_src != nullptr ? t->view_src : t;
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
    last_write = noted;
}

// Launch K's or V's write that begins at node i together with what comes before it (keys are scaled, then centred) and
// the other write after it. Returns the last node covered, -1 if there is nothing to put together.
static int fuse_write(ggml_backend_cuda_context &ctx, const ggml_cgraph *cgraph, int i) {
    int at = i, nodes[2] = {-1, -1}; // MUL and SUB
    for (const ggml_op op : {GGML_OP_MUL, GGML_OP_SUB}) {
        if (at < cgraph->n_nodes && cgraph->nodes[at]->op == op) {
            nodes[op == GGML_OP_SUB] = at;
            at = next_computing(cgraph, at);
        }
    }
    if (at >= cgraph->n_nodes || !writes_cache(cgraph->nodes[at])) {
        return -1;
    }
    ggml_tensor *first = cgraph->nodes[at];
    write_tensor k = make_set_rows(first);
    for (int n = 1, next = at; n >= 0; n--) {
        if (nodes[n] >= 0) {
            const float *vector = row_vector(cgraph, nodes[n], next, k.row_values);
            if (vector == nullptr) {
                return -1;
            }
            (n == 0 ? k.factor : k.centre) = vector;
            read_before(k, cgraph->nodes[nodes[n]]->src[0]);
            next = nodes[n];
        }
    }
    const int next = next_computing(cgraph, at);
    ggml_tensor *second = next < cgraph->n_nodes ? cgraph->nodes[next] : nullptr;
    const bool pair = second != nullptr && writes_cache(second) && first->data != second->data &&
                      second->src[0]->data != first->data;
    if (!pair && at == i) {
        return -1;
    }
    const write_tensor v = pair ? make_set_rows(second) : write_tensor{};
    if (pair) {
        note_write(cgraph, next, {first, second}, {k, v});
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
        if (next->op != GGML_OP_MUL && next->op != GGML_OP_SUB && next->op != GGML_OP_SET_ROWS) {
            return nullptr;
        }
    }
    return nullptr;
}

int turbo_cuda_try_fuse(ggml_backend_cuda_context &ctx, ggml_cgraph *cgraph, int i) {
    if (!ggml_op_is_empty(cgraph->nodes[i]->op) && cgraph->nodes[i] != last_write.attention) {
        last_write.attention = nullptr; // something else comes between
    }
    if (const int n = turbo_cuda_split_up_gate(ctx, cgraph, i)) {
        return n;
    }
    // with concurrent streams, V may be computed on another one
    if (ctx.curr_stream_no != 0) {
        return 0;
    }
    const ggml_tensor *attention = scales_own_queries(ctx, cgraph, i);
    const int last = fuse_write(ctx, cgraph, attention != nullptr ? next_computing(cgraph, i) : i);
    if (last < 0) {
        return 0;
    }
    if (attention != nullptr) {
        last_scale = {attention, (const float *) cgraph->nodes[i]->src[1]->data};
    }
    return last - i;
}

// ---- attention
// -------------------------------------------------------------------------------------------------------

struct fattn_params {
    float scale, max_bias, soft_cap;
};

static fattn_params params_of(const ggml_tensor *dst) {
    fattn_params p;
    memcpy(&p, dst->op_params, sizeof(p));
    return p;
}

// Values a block the kernels work with at a head dim, 0 for head dims they do not know.
static int block_of(int64_t head_dim) {
    return head_dim == 128 || head_dim == 256 || head_dim == 512 ? 128 : head_dim == 64 ? 64 : 0;
}

// Is this K or V stored in a way that the kernels read?
static bool readable(const ggml_tensor *t, int64_t head_dim) {
    const turbo_type_desc *desc = turbo_desc_of(t->type);
    const bool aligned = t->type != GGML_TYPE_F16 || (strides_are_multiples(t, 8) && (uintptr_t) t->data % 8 == 0);
    return kv_format_of(t->type) >= 0 && t->ne[0] == head_dim && t->nb[0] == ggml_type_size(t->type) && aligned &&
           (desc == nullptr || desc->block == block_of(head_dim));
}

bool turbo_cuda_fattn_supported(int device, const ggml_tensor *dst) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *v = dst->src[2], *mask = dst->src[3];
    const int64_t head_dim = q->ne[0], columns = q->ne[1] * (q->ne[2] / k->ne[2]);
    const bool compressed = ggml_is_quantized(k->type) || ggml_is_quantized(v->type); // f16 alone stays with upstream
    if (!compressed || block_of(head_dim) == 0 || !readable(k, head_dim) || !readable(v, head_dim)) {
        return false;
    }
    const bool query = q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && strides_are_multiples(q, 16) &&
                       q->ne[2] % k->ne[2] == 0;
    const bool cache = k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] && k->ne[3] == q->ne[3] && v->ne[3] == q->ne[3];
    const bool masked = mask == nullptr || (mask->type == GGML_TYPE_F16 && mask->ne[2] == 1 &&
                                            (mask->ne[3] == 1 || mask->ne[3] == q->ne[3]) && mask->ne[1] >= q->ne[1] &&
                                            mask->ne[0] >= k->ne[1]);
    const int cc = ggml_cuda_info().devices[device].cc;
    return query && cache && masked && params_of(dst).max_bias == 0.0f && dst->src[5] == nullptr &&
           q->ne[1] <= turbo_max_rows && columns <= turbo_max_columns && GGML_CUDA_CC_IS_NVIDIA(cc) &&
           cc >= GGML_CUDA_CC_AMPERE;
}

static kv_tensor make_kv(const ggml_tensor *t) {
    kv_tensor x;
    x.data = (const char *) t->data;
    x.format = kv_format_of(t->type);
    x.stride_token = t->nb[1], x.stride_head = t->nb[2], x.stride_stream = t->nb[3];
    return x;
}

static size_t scratch_offset(const ggml_tensor *dst) {
    return GGML_PAD(ggml_nbytes(dst), 128);
}

static attend_args make_attend(int device, const ggml_tensor *dst) {
    const ggml_tensor *q = dst->src[0], *k = dst->src[1], *mask = dst->src[3], *sinks = dst->src[4];
    const fattn_params params = params_of(dst);
    attend_args a = {};
    a.q = (const char *) q->data;
    a.q_stride_row = q->nb[1], a.q_stride_head = q->nb[2], a.q_stride_stream = q->nb[3];
    a.k = make_kv(k), a.v = make_kv(dst->src[2]);
    if (mask != nullptr) {
        a.mask = (const char *) mask->data;
        a.mask_stride_row = mask->nb[1];
        a.mask_stride_stream = mask->ne[3] > 1 ? mask->nb[3] : 0;
    }
    a.sinks = sinks != nullptr ? (const float *) sinks->data : nullptr;
    a.out = (float *) dst->data;
    a.scratch = (float *) ((char *) dst->data + scratch_offset(dst));
    a.head_dim = q->ne[0], a.block = block_of(q->ne[0]);
    a.n_head = q->ne[2], a.n_head_kv = k->ne[2], a.n_rows = q->ne[1], a.n_streams = q->ne[3], a.n_kv = k->ne[1];
    a.scale = params.scale, a.soft_cap = params.soft_cap;
    a.multiprocessors = ggml_cuda_info().devices[device].nsm;
    a.shared_limit = ggml_cuda_info().devices[device].smpbo;
    return a;
}

size_t turbo_cuda_fattn_alloc_size(int device, const ggml_tensor *dst) {
    const attend_args args = make_attend(device, dst);
    return scratch_offset(dst) + attend_scratch_bytes(args, attend_make_plan(args));
}

bool turbo_cuda_fattn(ggml_backend_cuda_context &ctx, ggml_tensor *dst) {
    if (!turbo_cuda_fattn_supported(ctx.device, dst)) {
        return false;
    }
    attend_args args = make_attend(ctx.device, dst);
    if (last_write.attention == dst && ctx.curr_stream_no == 0) {
        args.pending = last_write.write;
    }
    if (last_scale.attention == dst) {
        args.q_scale = last_scale.scale;
    }
    last_write.attention = last_scale.attention = nullptr;
    CUDA_CHECK(turbo_cuda::attend(args, attend_make_plan(args), ctx.stream()));
    return true;
}

// ---- reading back
// ----------------------------------------------------------------------------------------------------

static read_tensor make_read(const turbo_type_desc *desc, const void *source, void *target, bool half) {
    read_tensor r = {};
    r.source = (const char *) source;
    r.target = (char *) target;
    r.target_half = half;
    r.format = format_of(desc);
    r.block = desc->block;
    return r;
}

// Rows with the strides of two tensors of one shape.
static read_tensor make_read_rows(const ggml_tensor *src, ggml_tensor *dst) {
    read_tensor r = make_read(turbo_desc_of(src->type), src->data, dst->data, dst->type == GGML_TYPE_F16);
    for (int i = 0; i < 3; i++) {
        r.source_stride[i] = src->nb[i + 1];
        r.target_stride[i] = dst->nb[i + 1];
    }
    r.row_values = dst->ne[0], r.ne1 = dst->ne[1], r.ne2 = dst->ne[2];
    r.n_rows = ggml_nrows(dst);
    return r;
}

static bool is_plain(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16;
}

bool turbo_cuda_cpy(ggml_backend_cuda_context &ctx, const ggml_tensor *src, ggml_tensor *dst) {
    if (src->type == dst->type) {
        return false; // a plain copy of bytes
    }
    if (turbo_type_is(dst->type)) {
        if (ggml_are_same_shape(src, dst)) {
            CUDA_CHECK(turbo_cuda::write_rows(make_write(src, dst), nullptr, ctx.stream()));
        } else { // both contiguous (supports_op): as many rows of the target's shape
            write_tensor w = make_write(src, dst);
            w.row_values = dst->ne[0], w.ne1 = dst->ne[1], w.ne2 = dst->ne[2], w.n_rows = ggml_nrows(dst);
            w.source_stride[0] = dst->ne[0] * src->nb[0];
            w.source_stride[1] = w.source_stride[0] * dst->ne[1], w.source_stride[2] = w.source_stride[1] * dst->ne[2];
            CUDA_CHECK(turbo_cuda::write_rows(w, nullptr, ctx.stream()));
        }
        return true;
    }
    if (turbo_type_is(src->type)) {
        read_tensor r = make_read_rows(src, dst);
        if (!ggml_are_same_shape(src, dst)) {
            const size_t row = ggml_row_size(src->type, dst->ne[0]);
            r.source_stride[0] = row, r.source_stride[1] = row * dst->ne[1],
            r.source_stride[2] = row * dst->ne[1] * dst->ne[2];
        }
        CUDA_CHECK(turbo_cuda::read_rows(r, ctx.stream()));
        return true;
    }
    return false;
}

bool turbo_cuda_get_rows(ggml_backend_cuda_context &ctx, ggml_tensor *dst) {
    const ggml_tensor *src = dst->src[0], *ids = dst->src[1];
    if (!turbo_type_is(src->type)) {
        return false;
    }
    read_tensor r = make_read_rows(src, dst);
    r.ids = (const char *) ids->data;
    for (int i = 0; i < 3; i++) {
        r.ids_stride[i] = ids->nb[i];
    }
    CUDA_CHECK(turbo_cuda::read_rows(r, ctx.stream()));
    return true;
}

static bool copies(const ggml_tensor *src, const ggml_tensor *dst) {
    const bool contiguous = ggml_is_contiguous(src) && ggml_is_contiguous(dst);
    if (src->type == dst->type) {
        return contiguous;
    }
    const turbo_type_desc *packed = turbo_desc_of(turbo_type_is(src->type) ? src->type : dst->type);
    const ggml_tensor *plain = turbo_type_is(src->type) ? dst : src;
    return is_plain(plain->type) && plain->nb[0] == ggml_type_size(plain->type) && dst->ne[0] % packed->block == 0 &&
           (ggml_are_same_shape(src, dst) || contiguous);
}

bool turbo_cuda_supports_op(int device, const ggml_tensor *op, bool *answer) {
    GGML_UNUSED(device);
    bool concerned = turbo_type_is(op->type) || turbo_type_is_q(op->type);
    for (int i = 0; i < GGML_MAX_SRC && op->src[i] != nullptr; i++) {
        concerned |= turbo_type_is(op->src[i]->type) || turbo_type_is_q(op->src[i]->type);
    }
    if (!concerned || op->op == GGML_OP_FLASH_ATTN_EXT || ggml_op_is_empty(op->op)) {
        return false;
    }
    switch (op->op) {
        case GGML_OP_SET_ROWS: {
            const ggml_tensor *src = op->src[0], *ids = op->src[1];
            *answer = turbo_type_is(op->type) && src->type == GGML_TYPE_F32 && src->nb[0] == sizeof(float) &&
                      (ids->type == GGML_TYPE_I64 || ids->type == GGML_TYPE_I32);
        } break;
        case GGML_OP_GET_ROWS:
            *answer = turbo_type_is(op->src[0]->type) && is_plain(op->type) && op->src[1]->type == GGML_TYPE_I32;
            break;
        case GGML_OP_CPY:
            *answer = !turbo_type_is_q(op->src[0]->type) && !turbo_type_is_q(op->src[1]->type) &&
                      copies(op->src[0], op->src[1]);
            break;
        default: *answer = false;
    }
    return true;
}

// ---- lifting
// ---------------------------------------------------------------------------------------------------------

template <ggml_type type> static void lift(const void *x, half *y, int64_t k, cudaStream_t stream) {
    const turbo_type_desc *desc = turbo_desc_of(type);
    read_tensor r = make_read(desc, x, y, true);
    r.row_values = desc->block;
    r.source_stride[0] = desc->bytes, r.target_stride[0] = desc->block * sizeof(half);
    r.n_rows = k / desc->block, r.ne1 = r.n_rows, r.ne2 = 1;
    CUDA_CHECK(turbo_cuda::lift_rows(r, stream));
}

// Strides in blocks; the output is contiguous.
template <ggml_type type>
static void lift_strided(const void *x, half *y, int64_t ne00, int64_t ne01, int64_t ne02, int64_t ne03, int64_t s01,
                         int64_t s02, int64_t s03, cudaStream_t stream) {
    const turbo_type_desc *desc = turbo_desc_of(type);
    read_tensor r = make_read(desc, x, y, true);
    r.row_values = ne00, r.ne1 = ne01, r.ne2 = ne02, r.n_rows = ne01 * ne02 * ne03;
    const int64_t source[3] = {s01, s02, s03};
    int64_t target = ne00 * sizeof(half);
    const int64_t ne[3] = {ne01, ne02, ne03};
    for (int i = 0; i < 3; i++) {
        r.source_stride[i] = source[i] * desc->bytes;
        r.target_stride[i] = target;
        target *= ne[i];
    }
    CUDA_CHECK(turbo_cuda::lift_rows(r, stream));
}

to_fp16_cuda_t turbo_cuda_to_fp16(ggml_type type) {
    switch ((int) type) {
#define TURBO_CASE(NAME, name, family, k, n, bytes, L, V) \
    case GGML_TYPE_##NAME: return lift<GGML_TYPE_##NAME>;
        TURBO_TYPES(TURBO_CASE)
#undef TURBO_CASE
        default: return nullptr;
    }
}

to_fp16_nc_cuda_t turbo_cuda_to_fp16_nc(ggml_type type) {
    switch ((int) type) {
#define TURBO_CASE(NAME, name, family, k, n, bytes, L, V) \
    case GGML_TYPE_##NAME: return lift_strided<GGML_TYPE_##NAME>;
        TURBO_TYPES(TURBO_CASE)
#undef TURBO_CASE
        default: return nullptr;
    }
}
