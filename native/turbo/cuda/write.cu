// Kernels that encode rows into blocks and decode them again.

#include "launch.cuh"
#include "runs.cuh"
#include "trellis_batch.cuh"
#include "write.h"

#include <algorithm>

namespace turbo_cuda {

static constexpr int scalar_warps = 4; // blocks a thread block encodes at a time

template <int tensors> struct write_list {
    write_tensor tensor[tensors];
};
using write_params = write_list<2>;

struct row_place {
    const char *source;
    char *target;
    const __half *lacks; // of its run, or null
};

static __device__ __forceinline__ row_place place_of_row(const write_tensor &w, int row) {
    const int i3 = row / (w.ne1 * w.ne2), rest = row - i3 * w.ne1 * w.ne2, i2 = rest / w.ne1, i1 = rest - i2 * w.ne1;
    int64_t target_row = i1;
    if (w.ids != nullptr) {
        const char *id =
            w.ids + i1 * w.ids_stride[0] + i2 % w.ids_ne[0] * w.ids_stride[1] + i3 % w.ids_ne[1] * w.ids_stride[2];
        target_row = w.ids_64 ? *reinterpret_cast<const int64_t *>(id) : *reinterpret_cast<const int32_t *>(id);
    }
    return {w.source + i1 * w.source_stride[0] + i2 * w.source_stride[1] + i3 * w.source_stride[2],
            w.target + target_row * w.target_stride[0] + i2 * w.target_stride[1] + i3 * w.target_stride[2],
            run_of_cell(w.runs, target_row)};
}

struct block_place {
    const char *source;
    uint8_t *target;
    int first;           // value of the row
    const __half *lacks; // as of the row
};

// What a lane's values of a block count, and what they lose.
template <int n> struct block_changes {
    float factor[n / 32], less[n / 32];

    __device__ __forceinline__ block_changes(const write_tensor &w, const block_place &place) {
        const int at = place.first + (threadIdx.x & 31) * (n / 32);
#pragma unroll
        for (int i = 0; i < n / 32; i++) {
            factor[i] = w.factor != nullptr ? w.factor[at + i] : 1.0f;
            less[i] = w.centre != nullptr ? w.centre[at + i] : 0.0f;
        }
        if (place.lacks != nullptr) {
            const __half2 *lacks = reinterpret_cast<const __half2 *>(place.lacks + at);
#pragma unroll
            for (int i = 0; i < n / 32; i += 2) {
                const float2 c = __half22float2(lacks[i / 2]);
                less[i] = c.x, less[i + 1] = c.y;
            }
        }
    }
};

template <int n> static __device__ __forceinline__ void
load_block(const write_tensor &w, const block_place &place, const block_changes<n> &changes, float (&x)[n / 32]) {
    const char *source = place.source;
    const int at = place.first + (threadIdx.x & 31) * (n / 32);
#pragma unroll
    for (int i = 0; i < n / 32; i++) {
        x[i] = w.source_half ? __half2float(reinterpret_cast<const __half *>(source)[at + i])
                             : reinterpret_cast<const float *>(source)[at + i];
    }
#pragma unroll
    for (int i = 0; i < n / 32; i++) {
        x[i] = fmaf(x[i], changes.factor[i], -changes.less[i]);
    }
}

template <int n>
static __device__ __forceinline__ void load_block(const write_tensor &w, const block_place &place, float (&x)[n / 32]) {
    load_block<n>(w, place, block_changes<n>(w, place), x);
}

// The same for a launch whose rows are all that has to be waited for; whatever else is needed is fetched meanwhile.
template <int n> static __device__ __forceinline__ void
load_block_early(const write_tensor &w, const block_place &place, bool early, float (&x)[n / 32]) {
    const block_changes<n> changes(w, place);
    if (early) {
        wait_for_previous_kernel();
        let_next_kernel_start(); // the attention waits for this kernel's end
    }
    load_block<n>(w, place, changes, x);
}

template <class format, int n>
static __device__ __forceinline__ block_place place_of_block(const write_tensor &w, int index) {
    const int blocks = w.row_values / n, row = index / blocks, block = index - row * blocks;
    const row_place place = place_of_row(w, row);
    return {place.source, reinterpret_cast<uint8_t *>(place.target) + block * format::block_bytes(n), block * n,
            place.lacks};
}

template <class format, int n>
static __device__ __forceinline__ void write_block(const write_tensor &w, int index, bool early) {
    const block_place place = place_of_block<format, n>(w, index);
    float x[n / 32];
    load_block_early<n>(w, place, early, x);
    encode_scalar<format, n>(place.target, x);
}

template <class format, int n>
static __device__ __forceinline__ void write_trellis_block(const write_tensor &w, int index, void *scratch) {
    const branch_costs<format> costs(threadIdx.x / 32 >= trellis_tries);
    wait_for_previous_kernel();
    const block_place place = place_of_block<format, n>(w, index);
    float x[n / 32];
    load_block<n>(w, place, x);
    encode_trellis<format, n>(place.target, x, costs, static_cast<trellis_scratch<n> *>(scratch));
}

// q8_0 as upstream lays it out: for every 32 values an f16 scale, the largest magnitude over 127, and 32 signed bytes.
struct format_q8_0 {
    static __device__ __forceinline__ int block_bytes(int n) { return n / 32 * 34; }
};

template <int n> static __device__ __forceinline__ void write_q8_0(const write_tensor &w, int index, bool early) {
    constexpr int values = n / 32, lanes = 32 / values;
    const block_place place = place_of_block<format_q8_0, n>(w, index);
    float x[values], top = 0.0f;
    load_block_early<n>(w, place, early, x);
#pragma unroll
    for (int i = 0; i < values; i++) {
        top = fmaxf(top, fabsf(x[i]));
    }
#pragma unroll
    for (int step = 1; step < lanes; step *= 2) {
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
    }
    const float scale = top / 127.0f, to_int = scale > 0.0f ? 1.0f / scale : 0.0f;
    const int lane = threadIdx.x & 31;
    uint8_t *block = place.target + lane / lanes * 34;
    if (lane % lanes == 0) {
        *reinterpret_cast<__half *>(block) = __float2half_rn(scale);
    }
#pragma unroll
    for (int i = 0; i < values; i += 2) {
        const int low = (int) roundf(x[i] * to_int), high = (int) roundf(x[i + 1] * to_int);
        *reinterpret_cast<uint16_t *>(block + 2 + lane % lanes * values + i) =
            (uint16_t) ((low & 255) | (high & 255) << 8);
    }
}

// Formats without a trellis: a warp a block.
template <int n> static __device__ __forceinline__ void write_scalar(const write_tensor &w, int index, bool early) {
    switch (w.format) {
        case KV_Q8_0: write_q8_0<n>(w, index, early); break;
        case KV_TURBO2: write_block<format_turbo2, n>(w, index, early); break;
        case KV_TURBO3: write_block<format_turbo3, n>(w, index, early); break;
        case KV_TURBO4: write_block<format_turbo4, n>(w, index, early); break;
    }
}

template <int most_bits, int n>
static __device__ __forceinline__ void write_trellis(const write_tensor &w, int index, void *scratch) {
    switch (w.format) {
        case KV_TURBO2_TCQ: write_trellis_block<format_turbo2_tcq, n>(w, index, scratch); break;
        case KV_TURBO3_TCQ: write_trellis_block<format_turbo3_tcq, n>(w, index, scratch); break;
        case KV_TURBO4_TCQ:
            if constexpr (most_bits >= 4) {
                write_trellis_block<format_turbo4_tcq, n>(w, index, scratch);
            }
            break;
    }
}

// Scalar formats: a warp a block. blockIdx.y = tensor.
static __global__ void __launch_bounds__(scalar_warps * 32)
    write_scalar_kernel(const __grid_constant__ write_params p) {
    const write_tensor &w = p.tensor[blockIdx.y];
    const int index = blockIdx.x * scalar_warps + threadIdx.x / 32;
    if (!w.early) {
        wait_for_previous_kernel();
        let_next_kernel_start(); // the attention waits for this kernel's end
    }
    if (index >= w.n_rows * (w.row_values / w.block)) {
        return;
    }
    if (w.block == 128) {
        write_scalar<128>(w, index, w.early);
    } else {
        write_scalar<64>(w, index, w.early);
    }
}

// Any format with trellis codes up to most_bits: a thread block a block; scalar ones leave all warps but one idle. What
// a branch costs is kept in registers: fewer of them let more thread blocks share a multiprocessor, but make each
// slower. For few blocks, and for many on devices without the shared memory for batches.
template <int most_bits, int blocks_resident, int tensors>
static __global__ void __launch_bounds__(trellis_warps * 32, blocks_resident)
    write_trellis_kernel(const __grid_constant__ write_list<tensors> p) {
    __shared__ __align__(16) trellis_scratch<128> scratch[trellis_tries];
    const write_tensor &w = p.tensor[blockIdx.y];
    const int index = blockIdx.x;
    if (index >= w.n_rows * (w.row_values / w.block)) {
        return;
    }
    if (!is_trellis(w.format)) {
        wait_for_previous_kernel();
        if (threadIdx.x < 32) { // its end lets the next kernel start
            if (w.block == 128) {
                write_scalar<128>(w, index, false);
            } else {
                write_scalar<64>(w, index, false);
            }
        }
    } else if (w.block == 128) {
        write_trellis<most_bits, 128>(w, index, scratch);
    } else {
        write_trellis<most_bits, 64>(w, index, scratch);
    }
}

// Many blocks of one trellis format. A group of warps encodes eight at a time; two groups, where shared memory has room
// for them, share a multiprocessor's schedulers evenly, as two thread blocks of six warps would not.
static constexpr int batch_groups = 2;

template <class format, int n> static __global__ void __launch_bounds__(batch_groups * trellis_warps * 32, 1)
    write_batch_kernel(const __grid_constant__ write_params p) {
    extern __shared__ __align__(16) uint8_t shared[];
    constexpr int threads = trellis_warps * 32;
    const int group = threadIdx.x / threads, warp = threadIdx.x % threads / 32, groups = blockDim.x / threads,
              barrier_id = 1 + 4 * group;
    batch_scratch<format, n> &scratch = reinterpret_cast<batch_scratch<format, n> *>(shared)[group];
    const write_tensor &w = p.tensor[blockIdx.y];
    const int total = w.n_rows * (w.row_values / n), step = gridDim.x * groups * batch_blocks;
    const batch_search<format, n> search(warp >= trellis_tries);
    wait_for_previous_kernel();
#pragma unroll 1
    for (int first = (blockIdx.x * groups + group) * batch_blocks; first < total; first += step) {
#pragma unroll 1
        for (int slot = warp; slot < batch_blocks; slot += trellis_warps) {
            float x[n / 32] = {}; // of no block
            uint8_t *target = nullptr;
            if (first + slot < total) {
                const block_place place = place_of_block<format, n>(w, first + slot);
                load_block<n>(w, place, x);
                target = place.target;
            }
            batch_take_in<format, n>(scratch, slot, x, target);
        }
        barrier(barrier_id, threads);
        if (first + step >= total) {
            let_next_kernel_start(); // all input has been read and may be overwritten
        }
        search_batch<format, n>(scratch, search, warp, barrier_id + 1);
        barrier(barrier_id, threads);
#pragma unroll 1
        for (int slot = warp; slot < batch_blocks; slot += trellis_warps) {
            batch_give_out<format, n>(scratch, slot);
        }
        barrier(barrier_id, threads);
    }
}

static int blocks_of(const write_tensor &w) {
    return w.n_rows * (w.row_values / w.block);
}

// Several blocks for every multiprocessor: what counts then is throughput.
static bool many_blocks(const write_tensor &first, const write_tensor *second) {
    return blocks_of(first) + (second != nullptr ? blocks_of(*second) : 0) >= 1024;
}

static int device_attribute(cudaDeviceAttr attribute) {
    int device = 0, value = 0;
    return cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess
               ? value
               : 0;
}

// Eight blocks at a time, where the device has the shared memory for it.
static bool takes_batches(const write_tensor &first, const write_tensor *second) {
    return (is_trellis(first.format) || (second != nullptr && is_trellis(second->format))) &&
           many_blocks(first, second) &&
           (size_t) device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) >=
               sizeof(batch_scratch<format_turbo4_tcq, 128>);
}

template <class format, int n>
static cudaError_t launch_batch(const write_params &p, int tensors, cudaStream_t stream) {
    const int multiprocessors = device_attribute(cudaDevAttrMultiProcessorCount),
              most = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) / (int) sizeof(batch_scratch<format, n>);
    const int blocks = std::max(blocks_of(p.tensor[0]), tensors > 1 ? blocks_of(p.tensor[1]) : 0),
              batches = (blocks + batch_blocks - 1) / batch_blocks;
    // one group a multiprocessor is quicker than two
    const int groups = batches * tensors <= multiprocessors ? 1 : std::min(most, batch_groups);
    const size_t shared = groups * sizeof(batch_scratch<format, n>);
    const cudaError_t error =
        cudaFuncSetAttribute(write_batch_kernel<format, n>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared);
    if (error != cudaSuccess) {
        return error;
    }
    const int grid = std::min((batches + groups - 1) / groups, std::max(1, multiprocessors / tensors));
    return launch_overlapped(write_batch_kernel<format, n>, dim3(grid, tensors), groups * trellis_warps * 32, shared,
                             stream, p);
}

template <int n> static cudaError_t launch_batch_of(const write_params &p, int tensors, cudaStream_t stream) {
    switch (p.tensor[0].format) {
        case KV_TURBO2_TCQ: return launch_batch<format_turbo2_tcq, n>(p, tensors, stream);
        case KV_TURBO3_TCQ: return launch_batch<format_turbo3_tcq, n>(p, tensors, stream);
        case KV_TURBO4_TCQ: return launch_batch<format_turbo4_tcq, n>(p, tensors, stream);
        default: return cudaErrorInvalidValue;
    }
}

static dim3 write_grid(const write_tensor &first, const write_tensor *second) {
    const int blocks = std::max(blocks_of(first), second != nullptr ? blocks_of(*second) : 0);
    const bool trellis = is_trellis(first.format) || (second != nullptr && is_trellis(second->format));
    const unsigned tensors = second != nullptr ? 2 : 1;
    return trellis ? dim3(blocks, tensors) : dim3((blocks + scalar_warps - 1) / scalar_warps, tensors);
}

int write_blocks(const write_tensor &first, const write_tensor *second) {
    const dim3 grid = write_grid(first, second);
    const int blocks = (int) (grid.x * grid.y);
    return takes_batches(first, second) ? (blocks + batch_blocks - 1) / batch_blocks : blocks;
}

// A thread block a block (scalar formats: a warp), any formats.
static cudaError_t write_singly(const write_params &p, const write_tensor *second, cudaStream_t stream) {
    const dim3 grid = write_grid(p.tensor[0], second);
    if (grid.x == 0) {
        return cudaSuccess;
    }
    if (!is_trellis(p.tensor[0].format) && (second == nullptr || !is_trellis(second->format))) {
        return launch_overlapped(write_scalar_kernel, grid, scalar_warps * 32, 0, stream, p);
    }
    const bool wide = p.tensor[0].format == KV_TURBO4_TCQ || (second != nullptr && second->format == KV_TURBO4_TCQ);
    return launch_overlapped(many_blocks(p.tensor[0], second) && !wide ? write_trellis_kernel<3, 5, 2>
                                                                       : write_trellis_kernel<4, 1, 2>,
                             grid, trellis_warps * 32, 0, stream, p);
}

cudaError_t write_rows(const write_tensor &first, const write_tensor *second, cudaStream_t stream) {
    write_params p = {};
    p.tensor[0] = first;
    if (second != nullptr) {
        p.tensor[1] = *second;
    }
    if (!takes_batches(first, second)) {
        return write_singly(p, second, stream);
    }
    if (second != nullptr && (first.format != second->format || first.block != second->block)) {
        const cudaError_t error = write_rows(first, nullptr, stream);
        return error != cudaSuccess ? error : write_rows(*second, nullptr, stream);
    }
    const int tensors = second != nullptr ? 2 : 1;
    return first.block == 128 ? launch_batch_of<128>(p, tensors, stream) : launch_batch_of<64>(p, tensors, stream);
}

cudaError_t write_together(const write_tensor *tensors, int n, cudaStream_t stream) {
    static_assert(sizeof(write_list<most_together>) <= 4000, "what a kernel's parameters have room for anywhere");
    write_list<most_together> p = {};
    int blocks = 0;
    for (int i = 0; i < n; i++) {
        p.tensor[i] = tensors[i];
        blocks = std::max(blocks, blocks_of(tensors[i]));
    }
    return launch_overlapped(write_trellis_kernel<4, 1, most_together>, dim3(blocks, n), trellis_warps * 32, 0, stream,
                             p);
}

// ---- reading back
// ----------------------------------------------------------------------------------------------------

static constexpr int read_warps = 8;

template <class format, int n>
static __device__ __forceinline__ void read_block(const read_tensor &r, const char *source, char *target, int block) {
    const uint8_t *at = reinterpret_cast<const uint8_t *>(source) + block * format::block_bytes(n);
    float x[n / 32];
    decode_block<format, n>(at, x);
    const int first = block * n + (threadIdx.x & 31) * (n / 32);
#pragma unroll
    for (int i = 0; i < n / 32; i++) {
        if (r.target_half) {
            reinterpret_cast<__half *>(target)[first + i] = __float2half_rn(x[i]);
        } else {
            reinterpret_cast<float *>(target)[first + i] = x[i];
        }
    }
}

template <int n> static __device__ __forceinline__ void read_by_format(const read_tensor &r, const char *source,
                                                                       char *target, int block) {
    switch (r.format) {
        case KV_TURBO2: read_block<format_turbo2, n>(r, source, target, block); break;
        case KV_TURBO3: read_block<format_turbo3, n>(r, source, target, block); break;
        case KV_TURBO4: read_block<format_turbo4, n>(r, source, target, block); break;
        case KV_TURBO2_TCQ: read_block<format_turbo2_tcq, n>(r, source, target, block); break;
        case KV_TURBO3_TCQ: read_block<format_turbo3_tcq, n>(r, source, target, block); break;
        case KV_TURBO4_TCQ: read_block<format_turbo4_tcq, n>(r, source, target, block); break;
    }
}

static __global__ void __launch_bounds__(read_warps * 32) read_kernel(const __grid_constant__ read_tensor r) {
    const int64_t index = (int64_t) blockIdx.x * read_warps + threadIdx.x / 32;
    const int blocks = r.row_values / r.block;
    const int64_t row = index / blocks;
    wait_for_previous_kernel();
    let_next_kernel_start();
    if (row >= r.n_rows) {
        return;
    }
    const int block = (int) (index - row * blocks);
    const int64_t plane = (int64_t) r.ne1 * r.ne2, i3 = row / plane, rest = row - i3 * plane, i2 = rest / r.ne1,
                  i1 = rest - i2 * r.ne1;
    const int64_t source_row = r.ids ? *reinterpret_cast<const int32_t *>(r.ids + i1 * r.ids_stride[0] +
                                                                          i2 * r.ids_stride[1] + i3 * r.ids_stride[2])
                                     : i1;
    const char *source = r.source + source_row * r.source_stride[0] + i2 * r.source_stride[1] + i3 * r.source_stride[2];
    char *target = r.target + i1 * r.target_stride[0] + i2 * r.target_stride[1] + i3 * r.target_stride[2];
    if (r.block == 128) {
        read_by_format<128>(r, source, target, block);
    } else {
        read_by_format<64>(r, source, target, block);
    }
}

cudaError_t read_rows(const read_tensor &args, cudaStream_t stream) {
    const int64_t blocks = args.n_rows * (args.row_values / args.block);
    if (blocks == 0) {
        return cudaSuccess;
    }
    return launch_overlapped(read_kernel, dim3((unsigned) ((blocks + read_warps - 1) / read_warps)), read_warps * 32, 0,
                             stream, args);
}

} // namespace turbo_cuda
