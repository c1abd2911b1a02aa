// Host side of the attention kernels: how a call is cut over the chip, and the launches.

#include "attend_merge.cuh"

#include <algorithm>

namespace turbo_cuda {

static int block_bytes_of(int format) {
    switch (format) {
        case KV_TURBO2: case KV_TURBO2_TCQ: return turbo_bytes_turbo2;
        case KV_TURBO3: case KV_TURBO3_TCQ: return turbo_bytes_turbo3;
        case KV_TURBO4: case KV_TURBO4_TCQ: return turbo_bytes_turbo4;
        default: return 0;
    }
}

static float score_unit(int format) {
    switch (format) {
        case KV_TURBO2: return TURBO_UNIT_128_turbo2; // the query rotation divides by sqrt(128)
        case KV_TURBO3: return TURBO_UNIT_128_turbo3; // the query rotation divides by sqrt(128)
        case KV_TURBO4: return TURBO_UNIT_128_turbo4; // the query rotation divides by sqrt(128)
        default: return 1.0f;
    }
}

static stage_params make_stage(const kv_tensor &x, int head_dim, int heads) {
    stage_params s;
    s.data = x.data;
    s.stride_token = x.stride_token, s.stride_head = x.stride_head, s.stride_stream = x.stride_stream;
    s.format = x.format;
    s.block_bytes = block_bytes_of(x.format);
    s.head_bytes = s.block_bytes * (head_dim / 128);
    s.row_bytes = s.head_bytes * heads;
    s.contiguous = s.row_bytes == x.stride_token;
    s.pitch = s.contiguous ? (uint32_t) s.row_bytes : (uint32_t) (s.row_bytes + 30) / 16 * 16;
    return s;
}

static int slot_bytes(const stage_params &s) {
    return (keys_per_tile * (int) s.pitch + 16 + 8 + 15) / 16 * 16; // start skew, and a reader's look past the end
}

attend_plan attend_make_plan(const attend_args &args, int multiprocessors) {
    attend_plan plan;
    plan.warps = 16;
    const bool packed_heads = args.k.stride_head * args.n_head_kv == args.k.stride_token && args.v.stride_head * args.n_head_kv == args.v.stride_token;
    plan.heads_per_block = packed_heads ? args.n_head_kv : 1;
    while (plan.heads_per_block > 8) {
        plan.heads_per_block = (plan.heads_per_block + 1) / 2;
    }
    while (args.n_head_kv % plan.heads_per_block != 0) {
        plan.heads_per_block--;
    }
    const int tiles = (args.n_kv + keys_per_tile - 1) / keys_per_tile;
    const int lanes_of_work = multiprocessors / std::max(1, args.n_streams * args.n_head_kv / plan.heads_per_block);
    plan.splits = std::max(1, std::min(tiles, lanes_of_work));
    return plan;
}

size_t attend_scratch_bytes(const attend_args &args, const attend_plan &plan) {
    if (plan.splits == 1) {
        return 0;
    }
    const size_t states = (size_t) args.n_streams * args.n_head * args.n_rows * plan.splits;
    return states * (args.head_dim + 2) * sizeof(float);
}

template <class... parameters>
static cudaError_t launch(void (*kernel)(parameters...), dim3 grid, int threads, size_t shared, cudaStream_t stream, const attend_params &p) {
    cudaLaunchAttribute overlap;
    overlap.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    overlap.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = &overlap;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, p);
}

template <class shape, int warps> static cudaError_t attend_shape_launch(attend_params &p, const attend_args &args, cudaStream_t stream) {
    constexpr int combine_warps = 8;
    p.groups = std::min(warps / p.heads_per_block, std::max(1, (p.tiles + p.splits - 1) / p.splits));
    p.column_blocks = (p.n_columns + shape::columns - 1) / shape::columns;
    p.mask_rows = args.mask ? std::min(p.n_rows, (shape::columns + p.gqa - 2) / p.gqa + 1) : 0;
    const size_t head = shape::tiles * shape::blocks * (shape::fragments * sizeof(uint4) + 8 * sizeof(float));
    const size_t group = ring_slots * p.slot_bytes + 2 * p.mask_rows * keys_per_tile * 2;
    size_t shared = p.heads_per_block * head + p.groups * group;
    shared = std::max(shared, (size_t) p.groups * p.heads_per_block * shape::columns * (shape::head_dim + 2) * sizeof(float));
    const auto kernel = attend_kernel<shape, warps>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared);
    if (error != cudaSuccess) {
        return error;
    }
    const dim3 grid(p.splits, p.n_head_kv / p.heads_per_block * p.column_blocks, args.n_streams);
    error = launch(kernel, grid, warps * 32, shared, stream, p);
    if (error != cudaSuccess || p.splits == 1) {
        return error;
    }
    return launch(combine_kernel<shape, combine_warps>, dim3(p.n_columns, p.n_head_kv, args.n_streams), combine_warps * 32, 0, stream, p);
}

cudaError_t attend(const attend_args &args, const attend_plan &plan, cudaStream_t stream) {
    attend_params p = {};
    p.q = args.q;
    p.q_stride_row = args.q_stride_row, p.q_stride_head = args.q_stride_head, p.q_stride_stream = args.q_stride_stream;
    p.k = make_stage(args.k, args.head_dim, plan.heads_per_block);
    p.v = make_stage(args.v, args.head_dim, plan.heads_per_block);
    p.slot_bytes = std::max(slot_bytes(p.k), slot_bytes(p.v));
    p.mask = args.mask;
    p.mask_stride_row = args.mask_stride_row, p.mask_stride_stream = args.mask_stride_stream;
    p.sinks = args.sinks;
    p.out = args.out;
    p.n_head_kv = args.n_head_kv, p.gqa = args.n_head / args.n_head_kv;
    p.n_rows = args.n_rows, p.n_columns = args.n_rows * p.gqa, p.n_kv = args.n_kv;
    p.heads_per_block = plan.heads_per_block, p.splits = plan.splits;
    p.tiles = (args.n_kv + keys_per_tile - 1) / keys_per_tile;
    p.partial = args.scratch;
    p.partial_ml = args.scratch + (size_t) args.n_streams * args.n_head * args.n_rows * plan.splits * args.head_dim;
    const float unit = args.scale * score_unit(args.k.format);
    p.score_scale = args.soft_cap != 0.0f ? unit / args.soft_cap : unit * log2_e;
    p.soft_cap = args.soft_cap * log2_e;
    switch (plan.warps) {
        case 16: return attend_shape_launch<attend_shape<1, 1, 32>, 16>(p, args, stream);
        case 12: return attend_shape_launch<attend_shape<1, 1, 32>, 12>(p, args, stream);
        case 8: return attend_shape_launch<attend_shape<1, 1, 32>, 8>(p, args, stream);
        default: return cudaErrorInvalidValue;
    }
}

} // namespace turbo_cuda
