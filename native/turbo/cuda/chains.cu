// The kernel of chains.h: a thread block a vector. A thread has the same few places of every vector that a line reads,
// in registers, all asked for at once: only sums of squares need other threads.

#include "chains.h"

#include "launch.cuh"
#include "ptx.cuh"

namespace turbo_cuda {

static constexpr int chain_threads = 768; // leaves a thread 80 registers

struct chain_params : chain_args {
    int first_norms; // bit l: line l is normalised and begins with what is there before
};

// What a thread has of a vector, four neighbouring values at a time.
template <int fours> struct vector_piece {
    float4 x[fours];

    static __device__ __forceinline__ int place(int i) { return 4 * (int) (threadIdx.x + i * blockDim.x); }

    __device__ __forceinline__ void fill(float value) {
#pragma unroll
        for (int i = 0; i < fours; i++) {
            x[i] = make_float4(value, value, value, value);
        }
    }
    __device__ __forceinline__ void load(const chain_operand &from, int n) {
        if (from.number) {
            fill(*from.x);
            return;
        }
        const float *vector = from.x + blockIdx.x * from.stride;
#pragma unroll
        for (int i = 0; i < fours; i++) {
            if (place(i) < n) {
                x[i] = *reinterpret_cast<const float4 *>(vector + place(i));
            }
        }
    }
    __device__ __forceinline__ void store(float *to, int n) const {
        float *vector = to + (int64_t) blockIdx.x * n;
#pragma unroll
        for (int i = 0; i < fours; i++) {
            if (place(i) < n) {
                *reinterpret_cast<float4 *>(vector + place(i)) = x[i];
            }
        }
    }
    __device__ __forceinline__ float squares(int n) const {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < fours; i++) {
            if (place(i) < n) {
                sum += x[i].x * x[i].x + x[i].y * x[i].y + x[i].z * x[i].z + x[i].w * x[i].w;
            }
        }
        return sum;
    }
    // x = (x * scale + bias) * factor + add
    __device__ __forceinline__ void change(float scale, float bias, const vector_piece &factor,
                                           const vector_piece &add) {
#pragma unroll
        for (int i = 0; i < fours; i++) {
            x[i].x = (x[i].x * scale + bias) * factor.x[i].x + add.x[i].x;
            x[i].y = (x[i].y * scale + bias) * factor.x[i].y + add.x[i].y;
            x[i].z = (x[i].z * scale + bias) * factor.x[i].z + add.x[i].z;
            x[i].w = (x[i].w * scale + bias) * factor.x[i].w + add.x[i].w;
        }
    }
};

static __device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
    }
    return x;
}

template <int fours, int lines> static __global__ void __launch_bounds__(chain_threads)
    vector_chain_kernel(const chain_params p) {
    __shared__ float of_warp[lines][chain_threads / 32]; // sums of squares; no line needs another's place again
    let_next_kernel_start();
    const int lane = threadIdx.x & 31, warp = (int) threadIdx.x / 32, warps = (int) blockDim.x / 32;
    vector_piece<fours> value[lines], factor[lines], add[lines]; // value: the start of a line, then its result
#pragma unroll
    for (int l = 0; l < lines; l++) {
        value[l].fill(0.0f), factor[l].fill(1.0f), add[l].fill(0.0f);
    }
    const auto load = [&](vector_piece<fours> &piece, const chain_operand &from, bool early) {
        if (from.x != nullptr && from.early == early) {
            piece.load(from, p.n);
        }
    };
#pragma unroll
    for (int l = 0; l < lines; l++) {
        load(factor[l], p.line[l].factor, true);
        load(add[l], p.line[l].add, true);
    }
    wait_for_previous_kernel();
#pragma unroll
    for (int l = 0; l < lines; l++) {
        if (p.line[l].start.x != nullptr) {
            value[l].load(p.line[l].start, p.n);
        }
        load(factor[l], p.line[l].factor, false);
        load(add[l], p.line[l].add, false);
    }
    const auto note_squares = [&](int l) {
        const float sum = sum_of_warp(value[l].squares(p.n));
        if (lane == 0) {
            of_warp[l][warp] = sum;
        }
    };
    if (p.first_norms != 0) { // one barrier for all of them
#pragma unroll
        for (int l = 0; l < lines; l++) {
            if ((p.first_norms >> l & 1) != 0) {
                note_squares(l);
            }
        }
        __syncthreads();
    }
    float squares = 0.0f;
#pragma unroll
    for (int l = 0; l < lines; l++) {
        const chain_step &line = p.line[l];
        if (l >= p.lines) {
            break;
        }
#pragma unroll
        for (int before = 0; before < l; before++) {
            if (line.start_line == before) {
                value[l] = value[before];
            }
            if (line.add_line == before) {
                add[l] = value[before];
            }
        }
        float scale = line.scale;
        if (line.norm) {
            if (!line.same) {
                if ((p.first_norms >> l & 1) == 0) {
                    note_squares(l);
                    __syncthreads();
                }
                squares = sum_of_warp(lane < warps ? of_warp[l][lane] : 0.0f);
            }
            scale *= rsqrtf(squares / p.n + line.epsilon);
        }
        value[l].change(scale, line.bias, factor[l], add[l]);
        if (line.out != nullptr) {
            value[l].store(line.out, p.n);
        }
    }
}

template <int fours> static cudaError_t launch_chain(const chain_params &p, cudaStream_t stream) {
    const int threads = ((p.n / 4 + fours - 1) / fours + 31) / 32 * 32;
    auto kernel = p.lines <= 2 ? vector_chain_kernel<fours, 2> : vector_chain_kernel<fours, max_chain_lines>;
    return launch_overlapped(kernel, dim3(p.vectors), threads, 0, stream, p);
}

cudaError_t run_chain(const chain_args &args, cudaStream_t stream) {
    chain_params p{args, 0};
    for (int l = 0; l < p.lines; l++) {
        const chain_step &line = p.line[l];
        p.first_norms |= (line.norm && !line.same && line.start_line < 0) << l;
    }
    constexpr int at_once = 4 * chain_threads;
    static_assert(max_chain_values <= 2 * at_once, "a thread has one or two fours");
    return p.n <= at_once ? launch_chain<1>(p, stream) : launch_chain<2>(p, stream);
}

} // namespace turbo_cuda
