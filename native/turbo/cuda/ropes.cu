// The kernel of ropes.h: a warp a head of a token. Angles are ready before the kernel ahead has ended.

#include "ropes.h"

#include "launch.cuh"
#include "ptx.cuh"

namespace turbo_cuda {

static constexpr int rope_warps = 4;

struct rope_params : rope_args {};

// Cosine and sine for pair `i`.
static __device__ __forceinline__ float2 turn_of(const rope_params &p, int i) {
    float magnitude = p.attention_factor;
    const float extrapolated =
        p.position[blockIdx.y] * powf(p.theta_scale, (float) i) / (p.factors != nullptr ? p.factors[i] : 1.0f);
    float theta = p.freq_scale * extrapolated;
    if (p.ext_factor != 0.0f) {
        const float ramp = (i - p.ramp[0]) / fmaxf(0.001f, p.ramp[1] - p.ramp[0]),
                    mix = (1.0f - fminf(1.0f, fmaxf(0.0f, ramp))) * p.ext_factor;
        theta = theta * (1.0f - mix) + extrapolated * mix;
        magnitude *= 1.0f + 0.1f * logf(1.0f / p.freq_scale);
    }
    return make_float2(cosf(theta) * magnitude, sinf(theta) * magnitude);
}

template <int pairs> // of a lane
static __global__ void __launch_bounds__(32 * rope_warps) rope_together_kernel(const rope_params p) {
    let_next_kernel_start();
    const int lane = threadIdx.x & 31, row = (int) blockIdx.x * rope_warps + (int) threadIdx.x / 32;
    const bool keys = row >= p.tensor[0].heads;
    const rope_heads &t = p.tensor[keys];
    const int head = keys ? row - p.tensor[0].heads : row;
    const bool real = head < t.heads;
    int at[pairs][2];
    float2 turn[pairs], norm[pairs];
#pragma unroll
    for (int i = 0; i < pairs; i++) {
        const int pair = lane + 32 * i;
        const bool turns = 2 * pair < p.n_dims;
        at[i][0] = p.neox && turns ? pair : 2 * pair;
        at[i][1] = p.neox && turns ? pair + p.n_dims / 2 : 2 * pair + 1;
        const bool there = 2 * pair < p.head_dim;
        turn[i] = there && turns ? turn_of(p, pair) : make_float2(1.0f, 0.0f);
        norm[i] =
            there && t.norm != nullptr ? make_float2(t.norm[at[i][0]], t.norm[at[i][1]]) : make_float2(1.0f, 1.0f);
    }
    wait_for_previous_kernel();
    if (!real) {
        return;
    }
    const float *x = t.x + blockIdx.y * t.x_token + head * t.x_stride;
    float2 v[pairs];
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < pairs; i++) {
        const bool there = 2 * (lane + 32 * i) < p.head_dim;
        v[i] = there ? make_float2(x[at[i][0]], x[at[i][1]]) : make_float2(0.0f, 0.0f);
        sum += v[i].x * v[i].x + v[i].y * v[i].y;
    }
    float scale = 1.0f;
    if (t.norm != nullptr) {
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        }
        scale = rsqrtf(sum / p.head_dim + t.epsilon);
    }
    float *out = t.out + blockIdx.y * t.out_token + head * t.out_stride;
#pragma unroll
    for (int i = 0; i < pairs; i++) {
        if (2 * (lane + 32 * i) < p.head_dim) {
            const float a = scale * v[i].x * norm[i].x, b = scale * v[i].y * norm[i].y;
            out[at[i][0]] = a * turn[i].x - b * turn[i].y;
            out[at[i][1]] = a * turn[i].y + b * turn[i].x;
        }
    }
}

cudaError_t rope_together(const rope_args &args, cudaStream_t stream) {
    const rope_params p{args};
    const dim3 grid((p.tensor[0].heads + p.tensor[1].heads + rope_warps - 1) / rope_warps, p.tokens);
    auto kernel = p.head_dim <= 128   ? rope_together_kernel<2>
                  : p.head_dim <= 256 ? rope_together_kernel<4>
                                      : rope_together_kernel<max_rope_dim / 64>;
    return launch_overlapped(kernel, grid, 32 * rope_warps, 0, stream, p);
}

} // namespace turbo_cuda
