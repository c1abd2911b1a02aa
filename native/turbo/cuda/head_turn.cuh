// The norm and the rotary position encoding of a head (head_turn in attend.h), by a warp that has it in registers.
//
// Angles are computed as upstream computes them (ggml-cuda/rope.cu), to the bit where the compiler agrees: a large
// position leaves few bits behind the point, and what queries and other keys were turned by has to match.

#pragma once

#include "attend.h"

namespace turbo_cuda {

// Cosine and sine, with YaRN's magnitude, for pair `pair` at `position`.
static __device__ __forceinline__ float2 turn_of_pair(const head_turn &t, int position, int pair) {
    float theta = position * powf(t.theta_scale, (float) pair);
    if (t.freq_factors != nullptr) {
        theta /= t.freq_factors[pair];
    }
    float magnitude = t.attn_factor, angle = t.freq_scale * theta;
    if (t.ext_factor != 0.0f) { // between interpolated and extrapolated positions
        const float ramp = (pair - t.corr_low) / fmaxf(0.001f, t.corr_high - t.corr_low);
        const float mix = (1.0f - fminf(1.0f, fmaxf(0.0f, ramp))) * t.ext_factor;
        angle = angle * (1.0f - mix) + theta * mix;
        magnitude *= 1.0f + 0.1f * logf(1.0f / t.freq_scale);
    }
    return make_float2(cosf(angle) * magnitude, sinf(angle) * magnitude);
}

// The factor of a head's norm, whose values have this sum of squares.
static __device__ __forceinline__ float norm_of(const head_turn &t, float squares, int head_dim) {
    return rsqrtf(squares * (1.0f / head_dim) + t.eps);
}

// Lane l of `lanes` neighbouring ones has the values l*n to l*n + n - 1 of a head of lanes * n values. `back`: the
// other way round.
template <int lanes, int n, bool back = false>
static __device__ __forceinline__ void turn_head(const head_turn &t, int token, float (&x)[n]) {
    const int lane = threadIdx.x & (lanes - 1), first = lane * n;
    if (t.norm != nullptr) {
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < n; i++) {
            sum = fmaf(x[i], x[i], sum);
        }
#pragma unroll
        for (int step = 1; step < lanes; step *= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        }
        const float scale = norm_of(t, sum, lanes * n);
#pragma unroll
        for (int i = 0; i < n; i++) {
            x[i] = scale * x[i] * t.norm[first + i];
        }
    }
    const int position = t.positions[token];
    if (t.neox) { // n_dims is a multiple of 2n
        const int half = t.n_dims / 2, away = half / n;
        const bool second = first >= half, turned = first < t.n_dims;
        const int partner = !turned ? lane : second ? lane - away : lane + away;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float other = __shfl_sync(0xffffffffu, x[i], partner, lanes);
            if (turned) {
                float2 turn = turn_of_pair(t, position, first + i - (second ? half : 0));
                turn.y = back ? -turn.y : turn.y;
                x[i] = second ? other * turn.y + x[i] * turn.x : x[i] * turn.x - other * turn.y;
            }
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < n; i += 2) {
        if (first + i < t.n_dims) {
            float2 turn = turn_of_pair(t, position, (first + i) / 2);
            turn.y = back ? -turn.y : turn.y;
            const float low = x[i], high = x[i + 1];
            x[i] = low * turn.x - high * turn.y;
            x[i + 1] = low * turn.y + high * turn.x;
        }
    }
}

// The products of x with heads that have been turned are those of the result with heads that have not, but for the
// norm's factor of each (norm_of): x turned back, times the norm's weights.
template <int n> static __device__ __forceinline__ void turn_back(const head_turn &t, int token, float (&x)[n]) {
    head_turn back = t;
    back.norm = nullptr;
    turn_head<32, n, true>(back, token, x);
    if (t.norm != nullptr) {
#pragma unroll
        for (int i = 0; i < n; i++) {
            x[i] *= t.norm[(threadIdx.x & 31) * n + i];
        }
    }
}

} // namespace turbo_cuda
