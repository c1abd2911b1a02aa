// Launching the attention of many columns.

#include "attend_launch.cuh"
#include "attend_rows.cuh"

namespace turbo_cuda {

template <class shape>
static cudaError_t launch_rows(attend_params p, const attend_args &args, const attend_plan &plan, cudaStream_t stream) {
    p.slot_bytes = slot_bytes(p.k, shape::keys), p.v_slot_bytes = slot_bytes(p.v, shape::keys);
    p.late = 0;
    share_units(p, (args.n_kv + 15) / 16);
    p.run_room = room_for_runs(p, args);
    p.warps_per_head = plan.warps_per_head, p.by_warps = divider::by(p.warps_per_head);
    const int columns = p.warps_per_head * shape::columns, tiles = (args.n_kv + shape::keys - 1) / shape::keys;
    p.column_blocks = (p.n_columns + columns - 1) / columns;
    p.groups =
        std::min(rows_warps / (p.heads_per_block * p.warps_per_head), std::max(1, (tiles + p.splits - 1) / p.splits));
    p.tile_buffers = p.warps_per_head > 1 ? 2 : 1; // a warp alone does not meet anybody between two tiles
    const size_t parked = rows_layout<shape>::parked_bytes();
    auto shared = [&]() { return std::max(rows_layout<shape>::walking_bytes(p), parked); };
    if (shared() > args.shared_limit) {
        p.tile_buffers = 1;
    }
    while (shared() > args.shared_limit && p.groups > 1) {
        p.groups--;
    }
    if (shared() > args.shared_limit) {
        return cudaErrorInvalidConfiguration;
    }
    const auto kernel = attend_rows_kernel<shape>;
    cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared());
    if (error != cudaSuccess) {
        return error;
    }
    const dim3 grid(p.splits, p.n_head_kv / p.heads_per_block * p.column_blocks, args.n_streams);
    error = launch_overlapped(kernel, grid, rows_warps * 32, shared(), stream, p);
    if (error != cudaSuccess || p.splits == 1) {
        return error;
    }
    return launch_combine<shape::blocks, shape::values_per_lane>(p, args, stream);
}

cudaError_t attend_rows(const attend_params &p, const attend_args &args, const attend_plan &plan, cudaStream_t stream) {
    if (args.head_dim != 128) {
        return cudaErrorInvalidValue;
    }
    return plan.tiles == 1 ? launch_rows<rows_shape<1, 1, 32>>(p, args, plan, stream)
                           : launch_rows<rows_shape<1, 2, 32>>(p, args, plan, stream);
}

} // namespace turbo_cuda
