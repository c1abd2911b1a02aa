// From ggml tensors to the arguments of the kernels: attention, copies, lifting. Writes are in ggml_write.cu and
// ggml_later.cu; only these files know ggml.

#include "turbo/cuda/ggml_glue.cuh"

using namespace turbo_cuda;

bool turbo_cuda_is_kv_type(ggml_type type) {
    return turbo_type_is(type);
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
    return query && cache && masked && params_of(dst).max_bias == 0.0f &&
           runs_fit(device, dst->src[TURBO_RUNS_SRC], k) &&
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
    a.runs = runs_of(dst->src[TURBO_RUNS_SRC]);
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
    a.warpgroups = attend_wide_compiled() && ggml_cuda_info().devices[device].cc == GGML_CUDA_CC_HOPPER;
    a.clusters = ggml_cuda_highest_compiled_arch(ggml_cuda_info().devices[device].cc) >= GGML_CUDA_CC_HOPPER;
    return a;
}

bool turbo_cuda::attention_takes_newest(int device, const ggml_tensor *attention, const pending_write &write) {
    if (!turbo_cuda_fattn_supported(device, attention)) {
        return false;
    }
    attend_args args = make_attend(device, attention);
    args.pending = write;
    return attend_takes_newest(args, attend_make_plan(args));
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
    if (last_write().attention == dst && ctx.curr_stream_no == 0) {
        args.pending = last_write().write;
        args.inputs_ready = true; // the write came after them
    }
    if (last_scale().attention == dst) {
        args.q_scale = last_scale().scale;
    }
    last_write().attention = last_scale().attention = nullptr;
    args.pending.later = is_put_off(dst);
    CUDA_CHECK(turbo_cuda::attend(args, attend_make_plan(args), ctx.stream()));
    if (args.pending.later) {
        write_put_off(ctx, dst);
    }
    return true;
}

// ---- reading back
// ----------------------------------------------------------------------------------------------------

read_tensor turbo_cuda::make_read(const turbo_type_desc *desc, const void *source, void *target, bool half) {
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
    if (changes_keys(op)) {
        *answer = key_change_supported(device, op);
        return true;
    }
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
    if (lift_keys(x, y, true, stream)) {
        return;
    }
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
    if (lift_keys(x, y, false, stream)) {
        return;
    }
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

// Types of upstream's, where keys of them lack centres: found only while an attention lifts those.
template <ggml_type type> static void lift_other(const void *x, half *y, int64_t k, cudaStream_t stream) {
    if (!lift_keys(x, y, true, stream)) {
        const turbo_cuda_lifting upstream(nullptr);
        ggml_get_to_fp16_cuda(type)(x, y, k, stream);
    }
}

template <ggml_type type>
static void lift_other_strided(const void *x, half *y, int64_t ne00, int64_t ne01, int64_t ne02, int64_t ne03,
                               int64_t s01, int64_t s02, int64_t s03, cudaStream_t stream) {
    if (!lift_keys(x, y, false, stream)) {
        const turbo_cuda_lifting upstream(nullptr);
        ggml_get_to_fp16_nc_cuda(type)(x, y, ne00, ne01, ne02, ne03, s01, s02, s03, stream);
    }
}

to_fp16_cuda_t turbo_cuda_to_fp16(ggml_type type) {
    switch ((int) type) {
#define TURBO_CASE(NAME, name, family, k, n, bytes, L, V) \
    case GGML_TYPE_##NAME: return lift<GGML_TYPE_##NAME>;
        TURBO_TYPES(TURBO_CASE)
#undef TURBO_CASE
        case GGML_TYPE_Q8_0: return lifts_keys(type) ? lift_other<GGML_TYPE_Q8_0> : nullptr;
        case GGML_TYPE_Q4_0: return lifts_keys(type) ? lift_other<GGML_TYPE_Q4_0> : nullptr;
        default: return nullptr;
    }
}

to_fp16_nc_cuda_t turbo_cuda_to_fp16_nc(ggml_type type) {
    switch ((int) type) {
#define TURBO_CASE(NAME, name, family, k, n, bytes, L, V) \
    case GGML_TYPE_##NAME: return lift_strided<GGML_TYPE_##NAME>;
        TURBO_TYPES(TURBO_CASE)
#undef TURBO_CASE
        case GGML_TYPE_Q8_0: return lifts_keys(type) ? lift_other_strided<GGML_TYPE_Q8_0> : nullptr;
        case GGML_TYPE_Q4_0: return lifts_keys(type) ? lift_other_strided<GGML_TYPE_Q4_0> : nullptr;
        default: return nullptr;
    }
}
