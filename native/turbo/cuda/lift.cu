// Blocks to f16 in bulk, for attention kernels that read f16: eight blocks a warp.
//
// Codes are unpacked as the attention kernel does (decode.cuh), a quarter of a block a lane, and that is what a
// tensor-core product takes as its right side: the Hadamard transform over five bits of the position is a product with
// a matrix of signs. The other one or two bits are registers of the same lane. Rows are ordered so that a lane ends
// with eight neighbouring values (16 bytes) of two blocks.

#include "attend_query.cuh"
#include "decode.cuh"
#include "launch.cuh"
#include "runs.cuh"
#include "write.h"

#include <algorithm>

namespace turbo_cuda {

// Warps of a thread block: many where they share a table that has to be filled.
static __host__ __device__ constexpr int lift_warps(int format) {
    return is_trellis(format) ? 16 : 4;
}

// Division by a number that is known before the launch; dividends below 2^31.
struct divisor {
    uint32_t by, multiplier, shift;

    explicit divisor(uint32_t d) : by(d), shift(0) {
        while (1ull << shift < d) {
            shift++;
        }
        multiplier = (uint32_t) ((((1ull << shift) - d) << 32) / d + 1);
    }
    __device__ __forceinline__ uint32_t quotient(uint32_t x) const { return (__umulhi(x, multiplier) + x) >> shift; }
};

struct lift_params {
    read_tensor tensor;
    divisor blocks, plane, ne1; // of a row; rows of dims 1 and 2, of dim 1
};

// The transform of eight blocks. Bits of a position and where they are, before -> after:
//   values = 32: 0, 1 byte -> row + 8, second half of the rows; 2 register; 3 second half of the depth -> bit 0 of g;
//                4 register; 5, 6 quarter -> bits 1, 2 of g
//   values = 16: 0, 1 the same; 2, 5 quarter -> bits 0, 2 of g; 3 register; 4 second half of the depth -> bit 1 of g
// (lane 4g+t decodes quarter t of block g and gets values of blocks 2t and 2t+1.)
template <int values> struct lift_transform {
    static constexpr int registers = values / 8; // position bits that stay registers: 4 or 2 numbers
    uint32_t rows[2][4];

    __device__ __forceinline__ lift_transform() {
        const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        constexpr uint32_t flip = 0xfefefefeu; // 1 to -1 and back
        const int quarter = values == 32 ? __popc(g >> 1 & t) : __popc((g & 1 & t) | (g >> 1 & 2 & t)),
                  depth = values == 32 ? g & 1 : g >> 1 & 1;
#pragma unroll
        for (int part = 0; part < 2; part++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int low = (i & 1) | part << 1; // position bits 0 and 1 of the row
                const uint32_t signs = low == 0   ? 0x01010101u
                                       : low == 1 ? 0xff01ff01u
                                       : low == 2 ? 0xffff0101u
                                                  : 0x01ffff01u;
                rows[part][i] = signs ^ (quarter + (i >> 1 & depth) & 1 ? flip : 0u);
            }
        }
    }

    // x[i][j]: position bits 0 and 1 are the bits of j, the remaining registers' bits those of i; [block][i][j].
    __device__ __forceinline__ void apply(const uint32_t (&codes)[values / 4], float (&x)[2][registers][4]) const {
#pragma unroll
        for (int i = 0; i < registers; i++) {
            // position bits 2 and 4 of the register are i's, bit 3 the depth's; values = 16: bit 3 is i's, bit 4 the
            // depth's
            const uint32_t b0 = codes[values == 32 ? (i & 1) + (i & 2) * 2 : i],
                           b1 = codes[values == 32 ? (i & 1) + (i & 2) * 2 + 2 : i + 2];
#pragma unroll
            for (int part = 0; part < 2; part++) {
                int32_t sum[4]; // as the bits of 1.5 * 2^23 + sum
                mma_s8_s8(sum, rows[part], b0, b1, 0x4b400000);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    x[j & 1][i][part * 2 + (j >> 1)] = __int_as_float(sum[j]) - 12582912.0f;
                }
            }
        }
#pragma unroll
        for (int bit = 1; bit < registers; bit *= 2) {
#pragma unroll
            for (int i = 0; i < registers; i++) {
#pragma unroll
                for (int at = 0; at < 8 && (i & bit) == 0; at++) {
                    float &low = x[at & 1][i][at >> 1], &high = x[at & 1][i + bit][at >> 1];
                    const float a = low, b = high;
                    low = a + b;
                    high = a - b;
                }
            }
        }
    }
};

// Two values as f16, with their signs (bits 15 and 31 of `flip`).
static __device__ __forceinline__ uint32_t signed_pair(float low, float high, uint32_t flip) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair) ^ flip;
}

// Eight of them, plus the centres of theirs.
static __device__ __forceinline__ uint4 plus_centres(const uint4 &eight, const uint4 &centres) {
    const __half2 *x = reinterpret_cast<const __half2 *>(&eight), *c = reinterpret_cast<const __half2 *>(&centres);
    __half2 sum[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum[i] = __hadd2(x[i], c[i]);
    }
    return *reinterpret_cast<const uint4 *>(sum);
}

// What a global address is in another lane.
template <class T> static __device__ __forceinline__ T *address_of_lane(T *address, int lane) {
    return static_cast<T *>(__cvta_global_to_generic(
        (size_t) __shfl_sync(0xffffffffu, (unsigned long long) __cvta_generic_to_global(address), lane)));
}

template <class reader, class format, int values>
static __global__ void __launch_bounds__(lift_warps(format::id) * 32, 32 / lift_warps(format::id))
    lift_kernel(const __grid_constant__ lift_params p) {
    constexpr int n = 4 * values, warps = lift_warps(format::id), table_bytes = look_up_bytes(format::id, 2);
    constexpr int registers = lift_transform<values>::registers;
    __shared__ __align__(16) uint8_t table[table_bytes > 0 ? table_bytes : 16];
    if constexpr (table_bytes > 0) {
        look_up_table<format, 2>::fill(table, threadIdx.x, warps * 32);
        __syncthreads();
    }
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const lift_transform<values> transform;
    const reader codes(table);
    // Signs of eight values in a row, two a register. Of 128 values a lane has the positions 8 (g & 1) + 16 i + 32 (g
    // >> 1) + 0..7; of 64 it has 4 (g & 1) + 8 i + 16 (g >> 1) + 0..3 until neighbours exchange theirs.
    uint32_t flip[2][4];
    const uint32_t signs =
        sign_word<n>(values == 32 ? g >> 1 : g >> 2) >> (values == 32 ? 8 * (g & 1) : 4 * (g & 1) + 16 * (g >> 1 & 1));
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t two = signs >> (values == 32 ? 16 * i + 2 * j : 8 * i + 2 * (j & 1));
            flip[i][j] = (two & 1) << 15 | (two & 2) << 30;
        }
    }
    wait_for_previous_kernel();
    let_next_kernel_start();
    const read_tensor &r = p.tensor;
    const uint32_t total = (uint32_t) r.n_rows * p.blocks.by;
    for (uint32_t first = (blockIdx.x * warps + threadIdx.x / 32) * 8; first < total; first += gridDim.x * warps * 8) {
        const uint32_t index = min(first + g, total - 1); // a surplus lane repeats the last block
        const uint32_t row = p.blocks.quotient(index), block = index - row * p.blocks.by;
        const uint32_t i3 = p.plane.quotient(row), rest = row - i3 * p.plane.by, i2 = p.ne1.quotient(rest),
                       i1 = rest - i2 * p.ne1.by;
        const char *source = r.source + i1 * r.source_stride[0] + i2 * r.source_stride[1] + i3 * r.source_stride[2] +
                             block * format::block_bytes(n);
        char *target = r.target + i1 * r.target_stride[0] + i2 * r.target_stride[1] + i3 * r.target_stride[2] +
                       block * n * sizeof(__half);
        const bool lacking = r.runs.rows != nullptr;
        const __half *lacks = lacking ? run_of_cell(r.runs, i1) + i2 * r.row_values + block * n : nullptr;
        // whole words around the block, which is only 2-byte aligned
        const uint32_t start = (uint32_t) (reinterpret_cast<uintptr_t>(source) & 3);
        const uint8_t *base = reinterpret_cast<const uint8_t *>(source) - start;
        uint32_t w[reader::words], unpacked[values / 4];
        reader::template load<true>(w, reader::place(base, start, t), 0);
        const float own_scale = reader::scale(base, start) * format::unit(n);
        codes.template decode<0>(w, unpacked[0], unpacked[1]);
        codes.template decode<1>(w, unpacked[2], unpacked[3]);
        if constexpr (values == 32) {
            codes.template decode<2>(w, unpacked[4], unpacked[5]);
            codes.template decode<3>(w, unpacked[6], unpacked[7]);
        }
        float x[2][registers][4];
        transform.apply(unpacked, x);
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const float f = __shfl_sync(0xffffffffu, own_scale, 4 * (2 * t + j));
            uint4 *to = reinterpret_cast<uint4 *>(address_of_lane(target, 4 * (2 * t + j)));
            const uint4 *centres =
                lacking ? reinterpret_cast<const uint4 *>(address_of_lane(lacks, 4 * (2 * t + j))) : nullptr;
            auto store = [&](int at, const uint4 &eight) {
                to[at] = lacking ? plus_centres(eight, centres[at]) : eight;
            };
            uint4 eight[2];
            if constexpr (values == 32) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const float(&low)[4] = x[j][2 * i], (&high)[4] = x[j][2 * i + 1];
                    eight[i].x = signed_pair(low[0] * f, low[1] * f, flip[i][0]);
                    eight[i].y = signed_pair(low[2] * f, low[3] * f, flip[i][1]);
                    eight[i].z = signed_pair(high[0] * f, high[1] * f, flip[i][2]);
                    eight[i].w = signed_pair(high[2] * f, high[3] * f, flip[i][3]);
                    store((g & 1) + 2 * i + 4 * (g >> 1), eight[i]);
                }
            } else {
                uint2 four[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    four[i].x = signed_pair(x[j][i][0] * f, x[j][i][1] * f, flip[i][0]);
                    four[i].y = signed_pair(x[j][i][2] * f, x[j][i][3] * f, flip[i][1]);
                }
                // even g keep the first eight of 16 positions, odd ones the others
                const uint2 given = g & 1 ? four[0] : four[1], kept = g & 1 ? four[1] : four[0];
                const uint2 got = {__shfl_xor_sync(0xffffffffu, given.x, 4), __shfl_xor_sync(0xffffffffu, given.y, 4)};
                store((g & 1) + 2 * (g >> 1),
                      g & 1 ? make_uint4(got.x, got.y, kept.x, kept.y) : make_uint4(kept.x, kept.y, got.x, got.y));
            }
        }
    }
}

template <class reader, class format, int values>
static cudaError_t lift_format(const read_tensor &args, cudaStream_t stream) {
    const int64_t blocks = args.n_rows * (args.row_values / (4 * values));
    if (blocks >= (int64_t) 1 << 31) {
        return cudaErrorInvalidValue; // blocks are counted in 32 bits: 275 billion values
    }
    constexpr int warps = lift_warps(format::id);
    const int64_t wanted = (blocks + 8 * warps - 1) / (8 * warps);
    int64_t grid = wanted;
    if (is_trellis(
            format::id)) { // thread blocks that stay, so that few fill a table; all take the same number of turns
        static const int resident = [] {
            int device = 0, multiprocessors = 0, of_one = 0;
            cudaGetDevice(&device);
            cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
            cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_one, lift_kernel<reader, format, values>, warps * 32, 0);
            return std::max(1, multiprocessors * of_one);
        }();
        const int64_t turns = (wanted + resident - 1) / resident;
        grid = (wanted + turns - 1) / turns;
    }
    const lift_params p = {args, divisor((uint32_t) (args.row_values / (4 * values))),
                           divisor((uint32_t) args.ne1 * (uint32_t) args.ne2), divisor((uint32_t) args.ne1)};
    return launch_overlapped(lift_kernel<reader, format, values>, dim3((unsigned) grid), warps * 32, 0, stream, p);
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
