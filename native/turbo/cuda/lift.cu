// Blocks to f16 in bulk, for attention kernels that read f16: eight blocks a warp, a quarter of a block a lane, so that
// most of the Hadamard transform stays inside a lane.

#include "attend_query.cuh"
#include "decode.cuh"
#include "launch.cuh"
#include "runs.cuh"
#include "write.h"

namespace turbo_cuda {

static constexpr int lift_warps = 4;

// Signed byte i of a register, exactly.
static __device__ __forceinline__ float byte_value(uint32_t bytes, int i) {
    return (float) (int8_t) (bytes >> (8 * i));
}

template <class reader, class format, int values>
static __device__ __forceinline__ void lift_quarter(const uint8_t *block, __half *lifted, const uint8_t *table,
                                                    const __half *lacks) {
    constexpr int n = 4 * values;
    const int t = threadIdx.x & 3;
    // whole words around the block, which is only 2-byte aligned
    const uint8_t *base = reinterpret_cast<const uint8_t *>(reinterpret_cast<uintptr_t>(block) & ~(uintptr_t) 3);
    const uint32_t start = (uint32_t) (block - base);
    const reader codes(table);
    uint32_t w[reader::words], r[values / 4];
    reader::load(w, reader::place(base, start, t), 0);
    codes.template decode<0>(w, r[0], r[1]);
    codes.template decode<1>(w, r[2], r[3]);
    if constexpr (values == 32) {
        codes.template decode<2>(w, r[4], r[5]);
        codes.template decode<3>(w, r[6], r[7]);
    }
    float x[values];
#pragma unroll
    for (int i = 0; i < values; i++) {
        x[i] = byte_value(r[i / 4], i % 4);
    }
    hadamard_lanes<values, 4>(x); // over the quarters in the order of their position bits; the transform does not mind
    const float f = reader::scale(base, start) * format::unit(n);
    const uint32_t signs = sign_word<n>(values == 32 ? t : t >> 1) >> (values == 32 ? 0 : 4 * (t & 1));
#pragma unroll
    for (int i = 0; i < values; i += 4) {
        const int at = values == 32 ? i : 2 * i; // position of value i after the first of the quarter
        const int first = values == 32 ? 32 * t : 32 * (t >> 1) + 4 * (t & 1);
        const uint2 centre = lacks != nullptr ? *reinterpret_cast<const uint2 *>(lacks + first + at) : make_uint2(0, 0);
        __half2 pair[2];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float2 c = __half22float2(reinterpret_cast<const __half2 *>(&centre)[j]);
            pair[j] = __floats2half2_rn(flip_sign(x[i + 2 * j] * f, signs, at + 2 * j) + c.x,
                                        flip_sign(x[i + 2 * j + 1] * f, signs, at + 2 * j + 1) + c.y);
        }
        *reinterpret_cast<uint2 *>(lifted + first + at) = *reinterpret_cast<const uint2 *>(pair);
    }
}

// Eight lifted blocks to memory, neighbouring lanes to neighbouring addresses. Lane 4g knows where block g goes.
template <int n> static __device__ __forceinline__ void store_blocks(const __half (&lifted)[8][n + 8], __half *target) {
    constexpr int units = n / 8; // 16 bytes each
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int i = 0; i < 8 * units / 32; i++) {
        const int at = i * 32 + lane, block = at / units, unit = at % units;
        const unsigned long long to =
            __shfl_sync(0xffffffffu, (unsigned long long) reinterpret_cast<uintptr_t>(target), 4 * block);
        reinterpret_cast<uint4 *>((uintptr_t) to)[unit] = reinterpret_cast<const uint4 *>(lifted[block])[unit];
    }
}

template <class reader, class format, int values>
static __global__ void __launch_bounds__(lift_warps * 32) lift_kernel(const __grid_constant__ read_tensor p) {
    constexpr int n = 4 * values, table_bytes = look_up_bytes(format::id, 2);
    __shared__ __align__(16) uint8_t table[table_bytes > 0 ? table_bytes : 16];
    if constexpr (table_bytes > 0) {
        look_up_table<format, 2>::fill(table, threadIdx.x, lift_warps * 32);
    }
    __shared__ __align__(16) __half lifted[lift_warps][8][n + 8];
    wait_for_previous_kernel();
    let_next_kernel_start();
    __syncthreads();
    const uint32_t blocks = p.row_values / n, total = (uint32_t) p.n_rows * blocks, plane = (uint32_t) p.ne1 * p.ne2;
    for (uint32_t first = (blockIdx.x * lift_warps + threadIdx.x / 32) * 8; first < total;
         first += gridDim.x * lift_warps * 8) {
        const uint32_t index = min(first + (threadIdx.x & 31) / 4, total - 1); // a surplus lane repeats the last block
        const uint32_t row = index / blocks, block = index - row * blocks;
        const uint32_t i3 = row / plane, rest = row - i3 * plane, i2 = rest / p.ne1, i1 = rest - i2 * p.ne1;
        const char *source = p.source + i1 * p.source_stride[0] + i2 * p.source_stride[1] + i3 * p.source_stride[2];
        char *target = p.target + i1 * p.target_stride[0] + i2 * p.target_stride[1] + i3 * p.target_stride[2];
        __half *target_block = reinterpret_cast<__half *>(target) + block * n;
        const __half *lacks = run_of_cell(p.runs, i1);
        lift_quarter<reader, format, values>(reinterpret_cast<const uint8_t *>(source) + block * format::block_bytes(n),
                                             lifted[threadIdx.x / 32][(threadIdx.x & 31) / 4], table,
                                             lacks == nullptr ? lacks : lacks + i2 * p.row_values + block * n);
        __syncwarp();
        store_blocks<n>(lifted[threadIdx.x / 32], target_block);
        __syncwarp();
    }
}

template <class reader, class format, int values>
static cudaError_t lift_format(const read_tensor &args, cudaStream_t stream) {
    int device = 0, multiprocessors = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    if (args.n_rows * (args.row_values / (4 * values)) >= (int64_t) 1 << 31) {
        return cudaErrorInvalidValue; // blocks are counted in 32 bits: 275 billion values
    }
    const int64_t warps = (args.n_rows * (args.row_values / (4 * values)) + 7) / 8,
                  wanted = (warps + lift_warps - 1) / lift_warps;
    const int64_t grid = wanted < 12 * multiprocessors ? wanted : 12 * multiprocessors;
    return launch_overlapped(lift_kernel<reader, format, values>, dim3((unsigned) grid), lift_warps * 32, 0, stream,
                             args);
}

template <int values> static cudaError_t lift_by_format(const read_tensor &args, cudaStream_t stream) {
    switch (args.format) {
        case KV_TURBO2: return lift_format<reader_2bit<values>, format_turbo2, values>(args, stream);
        case KV_TURBO3: return lift_format<reader_3bit<values>, format_turbo3, values>(args, stream);
        case KV_TURBO4: return lift_format<reader_4bit<values>, format_turbo4, values>(args, stream);
        case KV_TURBO2_TCQ:
            return lift_format<reader_trellis<format_turbo2_tcq, values>, format_turbo2_tcq, values>(args, stream);
        case KV_TURBO3_TCQ:
            return lift_format<reader_trellis<format_turbo3_tcq, values>, format_turbo3_tcq, values>(args, stream);
        case KV_TURBO4_TCQ:
            return lift_format<reader_trellis<format_turbo4_tcq, values>, format_turbo4_tcq, values>(args, stream);
        default: return cudaErrorInvalidValue;
    }
}

cudaError_t lift_rows(const read_tensor &args, cudaStream_t stream) {
    if (args.n_rows == 0) {
        return cudaSuccess;
    }
    return args.block == 128 ? lift_by_format<32>(args, stream) : lift_by_format<16>(args, stream);
}

} // namespace turbo_cuda
