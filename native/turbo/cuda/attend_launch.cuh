// Launching the attention kernels: shared memory, grid, and the choice of instance. Included by one file a family.

#pragma once

#include "attend_kernel.cuh"
#include "launch.cuh"

#include <algorithm>

namespace turbo_cuda {

static int slot_bytes(const stage_params &s, int keys) {
    return (keys * (int) s.pitch + 16 + 8 + 15) / 16 * 16; // start skew, and a reader's look past the end
}

// Share the cache out to the splits. The last p.late of them begin when as many units as p.late_by have been done.
static void share_units(attend_params &p, int units) {
    const int share = (units + p.late * p.late_by) / p.splits, early = p.splits - p.late;
    if (share < p.late_by) {
        p.splits = early, p.late = 0;
    }
    const int late = p.late > 0 ? p.late * (share - p.late_by) : 0;
    p.split_units = (units - late) / early, p.split_rest = (units - late) % early;
    p.late_units = p.late > 0 ? late / p.late : 0;
}

// Room for what the runs of a thread block's stretch add to its scores, once the stretches are known.
static int room_for_runs(const attend_params &p, const attend_args &args, int tokens_a_unit = 16) {
    return most_runs(args.runs, tokens_a_unit * (p.split_units + (p.split_rest > 0)));
}

// Merge the splits: one kernel a head dim.
template <int blocks, int values>
static cudaError_t launch_combine(attend_params p, const attend_args &args, cudaStream_t stream) {
    using shape = attend_shape<blocks, 1, 1, values, family_scalar>;
    p.combine_parts = args.clusters ? most_parts : 1;
    while (p.combine_parts > 1 && p.n_columns * p.n_head_kv * args.n_streams * p.combine_parts > args.multiprocessors) {
        p.combine_parts /= 2;
    }
    const dim3 columns(p.n_columns * p.combine_parts, p.n_head_kv, args.n_streams);
    return p.combine_parts == 1
               ? launch_overlapped(combine_kernel<shape, 16>, columns, 16 * 32, 0, stream, p)
               : launch_overlapped(combine_kernel<shape, 8>, columns, 8 * 32, 0, stream, p, p.combine_parts);
}

template <class shape>
static cudaError_t launch_shape(attend_params p, const attend_args &args, cudaStream_t stream) {
    static_assert(shape::keys % 16 == 0, "tiles begin at the same place within 16 bytes");
    constexpr int warps = shape::warps;
    p.slot_bytes = std::max(slot_bytes(p.k, shape::keys), slot_bytes(p.v, shape::keys));
    const int tiles = (args.n_kv + shape::keys - 1) / shape::keys;
    share_units(p, (args.n_kv + 15) / 16);
    p.run_room = room_for_runs(p, args);
    p.groups = std::min(warps / p.heads_per_block, std::max(1, (tiles + p.splits - 1) / p.splits));
    p.column_blocks = (p.n_columns + shape::columns - 1) / shape::columns;
    const size_t head =
        shape::tiles * shape::blocks * (shape::fragments * sizeof(uint4) + shape::query_rows * 8 * sizeof(float));
    const size_t group = (size_t) ring_slots * p.slot_bytes;
    const size_t tables = shared_layout<shape>::table_bytes(p.k.format) +
                          (p.v.format == p.k.format ? 0 : shared_layout<shape>::table_bytes(p.v.format));
    constexpr size_t header = shared_layout<shape>::header;
    const size_t fixed = header + p.heads_per_block * head + tables + shared_layout<shape>::newest_bytes(p) +
                         shared_layout<shape>::run_bytes(p);
    const size_t shared_limit = args.shared_limit;
    const size_t parked = shared_layout<shape>::parked_bytes(p, 1);
    if (fixed + group > shared_limit || header + parked > shared_limit || (p.cluster && !shape::in_clusters)) {
        return cudaErrorInvalidConfiguration;
    }
    p.groups =
        (int) std::min<size_t>(p.groups, std::min((shared_limit - fixed) / group, (shared_limit - header) / parked));
    const size_t shared = std::max(fixed + p.groups * group, header + shared_layout<shape>::parked_bytes(p, p.groups));
    const auto kernel = attend_kernel<shape>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared);
    if (error != cudaSuccess) {
        return error;
    }
    const dim3 grid(p.splits, p.n_head_kv / p.heads_per_block * p.column_blocks, args.n_streams);
    error = launch_overlapped(kernel, grid, warps * 32, shared, stream, p, p.cluster ? p.splits : 1);
    if (error != cudaSuccess || p.splits == 1 || p.cluster) {
        return error;
    }
    return launch_combine<shape::blocks, shape::values_per_lane>(p, args, stream);
}

template <int family, int blocks, int tiles, int few, int many, int values>
static cudaError_t launch_slices(const attend_params &p, const attend_args &args, int slices, cudaStream_t stream) {
    return slices == few ? launch_shape<attend_shape<blocks, tiles, few, values, family>>(p, args, stream)
                         : launch_shape<attend_shape<blocks, tiles, many, values, family>>(p, args, stream);
}

// Heads of 64 and 128. With two tiles of columns there is one instance: the tile of tokens is short anyway.
template <int family>
static cudaError_t launch_small_heads(const attend_params &p, const attend_args &args, const attend_plan &plan,
                                      cudaStream_t stream) {
    constexpr int many = family == family_any ? 2 : 4;
    const bool one = plan.tiles == 1;
    switch (args.head_dim) {
        case 64:
            return one ? launch_slices<family, 1, 1, 1, many, 16>(p, args, plan.slices, stream)
                       : launch_slices<family, 1, 2, 2, 2, 16>(p, args, 2, stream);
        case 128:
            return one ? launch_slices<family, 1, 1, 1, many, 32>(p, args, plan.slices, stream)
                       : launch_slices<family, 1, 2, 2, 2, 32>(p, args, 2, stream);
        default: return cudaErrorInvalidValue;
    }
}

// Heads of 256 and 512: registers allow fewer tokens at a time.
template <int family>
static cudaError_t launch_large_heads(const attend_params &p, const attend_args &args, const attend_plan &plan,
                                      cudaStream_t stream) {
    constexpr int many = family == family_any ? 1 : 2;
    switch (args.head_dim) {
        case 256:
            return plan.tiles == 1 ? launch_slices<family, 2, 1, 1, 2, 32>(p, args, plan.slices, stream)
                                   : launch_slices<family, 2, 2, 1, 1, 32>(p, args, 1, stream);
        case 512: return launch_slices<family, 4, 1, 1, many, 32>(p, args, plan.slices, stream);
        default: return cudaErrorInvalidValue;
    }
}

// Has this pair of formats and head size an instance of its own?
bool attend_has_pair(const attend_args &args);

// Families, a file each: pairs of formats with instances of their own; both scalar codes; anything, in heads up to 128
// or larger.
cudaError_t attend_pairs(const attend_params &p, const attend_args &args, const attend_plan &plan, cudaStream_t stream);
cudaError_t attend_scalar(const attend_params &p, const attend_args &args, const attend_plan &plan,
                          cudaStream_t stream);
cudaError_t attend_any_small(const attend_params &p, const attend_args &args, const attend_plan &plan,
                             cudaStream_t stream);
cudaError_t attend_any_large(const attend_params &p, const attend_args &args, const attend_plan &plan,
                             cudaStream_t stream);

// Teams: more than 16 columns of heads of 128.
cudaError_t attend_rows(const attend_params &p, const attend_args &args, const attend_plan &plan, cudaStream_t stream);

// The same with warpgroup products, and those of codes from registers.
cudaError_t attend_wide(const attend_params &p, const attend_args &args, cudaStream_t stream);
cudaError_t attend_batch(const attend_params &p, const attend_args &args, cudaStream_t stream);

} // namespace turbo_cuda
