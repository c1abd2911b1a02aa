// Host side of the attention kernels: how a call is cut over the chip, and the launches.

#include "attend_merge.cuh"

#include <algorithm>

namespace turbo_cuda {

static constexpr int combine_warps = 16;

static int block_bytes_of(int format, int block) {
    switch (format) {
        case KV_TURBO2: case KV_TURBO2_TCQ: return TURBO_BLOCK_BYTES(2, block);
        case KV_TURBO3: case KV_TURBO3_TCQ: return TURBO_BLOCK_BYTES(3, block);
        case KV_TURBO4: case KV_TURBO4_TCQ: return TURBO_BLOCK_BYTES(4, block);
        default: return 0;
    }
}

// Shared memory a thread block can have on the current device.
static size_t shared_memory_limit() {
    int device = 0, bytes = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    return (size_t) bytes;
}

// Value of one integer step of a score before the block scale; the query rotation divides by sqrt(block).
static float score_unit(int format, int block) {
    switch (format) {
        case KV_TURBO2: return format_turbo2::unit(block);
        case KV_TURBO3: return format_turbo3::unit(block);
        case KV_TURBO4: return format_turbo4::unit(block);
        case KV_TURBO2_TCQ: return format_turbo2_tcq::unit(block);
        case KV_TURBO3_TCQ: return format_turbo3_tcq::unit(block);
        case KV_TURBO4_TCQ: return format_turbo4_tcq::unit(block);
        default: return 1.0f;
    }
}

static stage_params make_stage(const kv_tensor &x, const attend_args &args, int heads) {
    stage_params s;
    s.data = x.data;
    s.stride_token = x.stride_token, s.stride_head = x.stride_head, s.stride_stream = x.stride_stream;
    s.format = x.format;
    s.block_bytes = block_bytes_of(x.format, args.block);
    s.head_bytes = s.block_bytes * (args.head_dim / args.block);
    s.row_bytes = s.head_bytes * heads;
    s.contiguous = s.row_bytes == x.stride_token;
    return s;
}

static int slot_bytes(const stage_params &s, int keys) {
    return (keys * (int) s.pitch + 16 + 8 + 15) / 16 * 16; // start skew, and a reader's look past the end
}

// Warps of a thread block: fewer where a warp needs more registers.
static int block_warps(int head_dim, int tiles) {
    return head_dim <= 128 && tiles == 1 ? 16 : 8;
}

attend_plan attend_make_plan(const attend_args &args, int multiprocessors, int heads_per_block, int slices) {
    attend_plan plan;
    const int columns = args.n_head / args.n_head_kv * args.n_rows;
    plan.tiles = columns > 8 && args.head_dim <= 256 ? 2 : 1;
    const int warps = block_warps(args.head_dim, plan.tiles), column_blocks = (columns + 8 * plan.tiles - 1) / (8 * plan.tiles);
    const bool packed_heads = args.k.stride_head * args.n_head_kv == args.k.stride_token && args.v.stride_head * args.n_head_kv == args.v.stride_token;
    plan.heads_per_block = packed_heads ? args.n_head_kv : 1;
    while (plan.heads_per_block > 8) {
        plan.heads_per_block = (plan.heads_per_block + 1) / 2;
    }
    while (args.n_head_kv % plan.heads_per_block != 0) {
        plan.heads_per_block--;
    }
    if (heads_per_block > 0) {
        plan.heads_per_block = heads_per_block;
    }
    const int width = std::max(1, multiprocessors / std::max(1, args.n_streams * column_blocks * (args.n_head_kv / plan.heads_per_block)));
    const int groups = std::max(1, warps / plan.heads_per_block);
    const int many = args.head_dim > 128 || plan.tiles > 1 ? 2 : 4;
    plan.slices = slices > 0 ? slices : args.n_kv >= 64 * groups * width ? many : 1;
    const int keys = 16 * plan.slices * groups;
    plan.splits = std::max(1, std::min((args.n_kv + keys - 1) / keys, width));
    return plan;
}

size_t attend_scratch_bytes(const attend_args &args, const attend_plan &plan) {
    if (plan.splits == 1) {
        return 0;
    }
    const size_t states = (size_t) args.n_streams * args.n_head * args.n_rows * plan.splits;
    return states * (args.head_dim + 2) * sizeof(float);
}

static cudaError_t launch(void (*kernel)(const attend_params), dim3 grid, int threads, size_t shared, cudaStream_t stream, const attend_params &p) {
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

template <class shape, int warps> static cudaError_t launch_shape(attend_params p, const attend_args &args, cudaStream_t stream) {
    static_assert(shape::keys % 16 == 0, "tiles begin at the same place within 16 bytes");
    p.slot_bytes = std::max(slot_bytes(p.k, shape::keys), slot_bytes(p.v, shape::keys));
    const int tiles = (args.n_kv + shape::keys - 1) / shape::keys;
    p.split_tiles = tiles / p.splits, p.split_rest = tiles % p.splits;
    p.groups = std::min(warps / p.heads_per_block, std::max(1, (tiles + p.splits - 1) / p.splits));
    p.column_blocks = (p.n_columns + shape::columns - 1) / shape::columns;
    const size_t head = shape::tiles * shape::blocks * (shape::fragments * sizeof(uint4) + 8 * sizeof(float));
    const size_t group = ring_slots * (p.slot_bytes + 2 * sizeof(uint64_t));
    const size_t tables = pair_table_bytes(p.k.format) + (p.v.format == p.k.format ? 0 : pair_table_bytes(p.v.format));
    const size_t fixed = p.heads_per_block * head + tables;
    const size_t shared_limit = shared_memory_limit();
    const size_t parked = p.heads_per_block * shape::columns * (shape::parked_row + 2) * sizeof(float);
    if (fixed + group > shared_limit || parked > shared_limit) {
        return cudaErrorInvalidConfiguration;
    }
    p.groups = (int) std::min<size_t>(p.groups, std::min((shared_limit - fixed) / group, shared_limit / parked));
    const size_t shared = std::max(fixed + p.groups * group, p.groups * parked);
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
    using columns_shape = attend_shape<shape::blocks, 1, 1, shape::values_per_lane>; // one combine kernel a head dim
    const dim3 columns(p.n_columns, p.n_head_kv, args.n_streams);
    return launch(combine_kernel<columns_shape, combine_warps>, columns, combine_warps * 32, 0, stream, p);
}

template <int blocks, int tiles, int many, int values, int warps>
static cudaError_t launch_slices(const attend_params &p, const attend_args &args, int slices, cudaStream_t stream) {
    return slices == 1 ? launch_shape<attend_shape<blocks, tiles, 1, values>, warps>(p, args, stream)
                       : launch_shape<attend_shape<blocks, tiles, many, values>, warps>(p, args, stream);
}

static cudaError_t launch_by_shape(const attend_params &p, const attend_args &args, const attend_plan &plan, cudaStream_t stream) {
    const bool one = plan.tiles == 1;
    switch (args.head_dim) {
        case 64: return one ? launch_slices<1, 1, 4, 16, 16>(p, args, plan.slices, stream) : launch_slices<1, 2, 2, 16, 8>(p, args, plan.slices, stream);
        case 128: return one ? launch_slices<1, 1, 4, 32, 16>(p, args, plan.slices, stream) : launch_slices<1, 2, 2, 32, 8>(p, args, plan.slices, stream);
        case 256: return one ? launch_slices<2, 1, 2, 32, 8>(p, args, plan.slices, stream) : launch_slices<2, 2, 2, 32, 8>(p, args, plan.slices, stream);
        case 512: return launch_slices<4, 1, 2, 32, 8>(p, args, plan.slices, stream);
        default: return cudaErrorInvalidValue;
    }
}

cudaError_t attend(const attend_args &args, const attend_plan &plan, cudaStream_t stream) {
    attend_params p = {};
    p.q = args.q;
    p.q_stride_row = args.q_stride_row, p.q_stride_head = args.q_stride_head, p.q_stride_stream = args.q_stride_stream;
    p.k = make_stage(args.k, args, plan.heads_per_block);
    p.v = make_stage(args.v, args, plan.heads_per_block);
    p.copy_rows = !p.k.contiguous || !p.v.contiguous;
    for (stage_params *s : {&p.k, &p.v}) {
        s->contiguous = !p.copy_rows;
        s->pitch = p.copy_rows ? (uint32_t) (s->row_bytes + 30) / 16 * 16 : (uint32_t) s->row_bytes;
    }
    p.mask = args.mask;
    p.mask_stride_row = args.mask_stride_row, p.mask_stride_stream = args.mask_stride_stream;
    p.sinks = args.sinks;
    p.out = args.out;
    p.n_head_kv = args.n_head_kv, p.gqa = args.n_head / args.n_head_kv;
    p.n_rows = args.n_rows, p.n_columns = args.n_rows * p.gqa, p.n_kv = args.n_kv;
    p.heads_per_block = plan.heads_per_block, p.splits = plan.splits;
    p.partial = args.scratch;
    p.partial_ml = args.scratch + (size_t) args.n_streams * args.n_head * args.n_rows * plan.splits * args.head_dim;
    const float unit = args.scale * score_unit(args.k.format, args.block);
    p.score_scale = args.soft_cap != 0.0f ? unit / args.soft_cap : unit * log2_e;
    p.soft_cap = args.soft_cap * log2_e;
    return launch_by_shape(p, args, plan, stream);
}

} // namespace turbo_cuda
