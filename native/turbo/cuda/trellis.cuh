// Trellis encoding: a full Viterbi search over 64 states for each of a few candidate scales.
//
// Window w = symbol:state: the state before a step is w % 64, the state after it w >> bits. A candidate has two warps
// that meet in the middle of the block: one goes forward from every start state, one backward from every end state, two
// states a lane. The best path is the one through the state whose two costs sum to the least; both halves are then
// traced from there at the same time. Half the serial steps, the same minimum. A state reads the costs of 2^bits
// neighbours (backward: of a transposed order) with a few wide loads. Costs carry the choice made in their low bits, so
// that one minimum finds both.

#pragma once

#include "codec.cuh"

namespace turbo_cuda {

static constexpr int trellis_states = 64;
static constexpr int trellis_tries = 3;  // candidate scales
static constexpr int trellis_spread = 3; // their distance in units of the last stored bit
static constexpr int trellis_warps = 2 * trellis_tries;
static constexpr int choice_bits = 6; // low bits of a cost

// What a candidate came to: the scale as stored, and how much of the block it explains.
struct trellis_fit {
    uint32_t field;
    float explained;
};

// Shared memory of one candidate.
template <int n> struct alignas(16) trellis_scratch {
    int cost[2][2][trellis_states]; // direction, parity of the step, state
    int q[n];      // in 1/64 of a codebook step
    int coarse[n]; // as the costs see them: negative, the compiler would turn the sign of every slope instead
    uint8_t choice[n][trellis_states];
    uint16_t window[n];
    trellis_fit fit;
};

// Where the backward pass keeps the cost of state s: the states that one symbol apart follow a state lie side by side.
template <class format> static __device__ __forceinline__ int transposed(int s) {
    constexpr int rest = 6 - format::bits;
    return (s & ((1 << rest) - 1)) << format::bits | s >> rest;
}

// What the branches of a lane's two states cost, as base + slope * -q: entry e costs e * (4e - q) in quarters of a
// squared codebook step. Independent of the block: loaded while the kernel before may still run.
template <class format> struct branch_costs {
    static constexpr int branches = 1 << format::bits;
    int slope[2][branches], base[2][branches];

    __device__ __forceinline__ explicit branch_costs(bool backward) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int state = (threadIdx.x & 31) + 32 * half;
#pragma unroll
            for (int b = 0; b < branches; b++) {
                const int e = format::entry(backward ? b << 6 | state : state << format::bits | b);
                slope[half][b] = e * (1 << choice_bits);
                base[half][b] = 4 * e * e * (1 << choice_bits) + b;
            }
        }
    }
};

// A quantised value as the costs see it: eighths of a step, few enough for 32-bit sums.
static __device__ __forceinline__ int cost_value(int q) {
    return min(max((q + 4) >> 3, -2047), 2047);
}

// One direction over half of the block.
template <class format, int n, bool backward>
static __device__ __forceinline__ void search_half(trellis_scratch<n> &s, const branch_costs<format> &costs) {
    constexpr int branches = 1 << format::bits, mask = (1 << choice_bits) - 1;
    const int lane = threadIdx.x & 31;
    const int place[2] = {backward ? transposed<format>(lane) : lane,
                          backward ? transposed<format>(lane + 32) : lane + 32};
    s.cost[backward][0][place[0]] = s.cost[backward][0][place[1]] = 0; // every start and every end state is free
    // forward, both states of a lane have the same predecessors; backward, each its own successors
    const int from0 = backward ? lane >> format::bits << format::bits : (lane << format::bits) % trellis_states;
    const int from1 = backward ? (lane + 32) >> format::bits << format::bits : from0;
    constexpr int step = backward ? -1 : 1;
    int at = backward ? n - 1 : 0, q = s.coarse[at];
    __syncwarp();
#pragma unroll 2 // the parity of a step is then known
    for (int i = 0; i < n / 2; i++, at += step) {
        const int *before = s.cost[backward][i & 1];
        int4 old[2][branches / 4];
#pragma unroll
        for (int b = 0; b < branches / 4; b++) {
            old[0][b] = reinterpret_cast<const int4 *>(before + from0)[b];
            old[1][b] = backward ? reinterpret_cast<const int4 *>(before + from1)[b] : old[0][b];
        }
        const int next = s.coarse[(at + step) & (n - 1)];
        int best[2][2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            best[half][0] = best[half][1] = INT_MAX;
#pragma unroll
            for (int b = 0; b < branches; b++) {
                const int cost = costs.slope[half][b] * q + costs.base[half][b];
                const int4 four = old[half][b / 4];
                const int sum = b % 4 == 0 ? four.x : b % 4 == 1 ? four.y : b % 4 == 2 ? four.z : four.w;
                best[half][b & 1] = __viaddmin_s32(sum, cost, best[half][b & 1]);
            }
        }
        const int least0 = min(best[0][0], best[0][1]), least1 = min(best[1][0], best[1][1]);
        s.cost[backward][~i & 1][place[0]] = least0 & ~mask;
        s.cost[backward][~i & 1][place[1]] = least1 & ~mask;
        s.choice[at][lane] = (uint8_t) (least0 & mask);
        s.choice[at][lane + 32] = (uint8_t) (least1 & mask);
        q = next;
        __syncwarp();
    }
}

// The state in the middle of the best path; the least-numbered on ties.
template <class format, int n> static __device__ __forceinline__ int meet(const trellis_scratch<n> &s) {
    const int lane = threadIdx.x & 31;
    const int *forward = s.cost[0][n / 2 & 1], *backward = s.cost[1][n / 2 & 1];
    const int low = forward[lane] + backward[transposed<format>(lane)],
              high = forward[lane + 32] + backward[transposed<format>(lane + 32)];
    const int least = __reduce_min_sync(0xffffffffu, min(low, high));
    const unsigned in_low = __ballot_sync(0xffffffffu, low == least),
                   in_high = __ballot_sync(0xffffffffu, high == least);
    return in_low ? __ffs((int) in_low) - 1 : __ffs((int) in_high) + 31;
}

// Windows of one half, from the middle outwards. Every lane does and writes the same.
template <class format, int n, bool backward>
static __device__ __forceinline__ void trace_half(trellis_scratch<n> &s, int state) {
#pragma unroll 1
    for (int i = 0; i < n / 2; i++) {
        if (backward) { // the backward pass chose the symbols that follow
            const int w = s.choice[n / 2 + i][state] << 6 | state;
            s.window[n / 2 + i] = (uint16_t) w;
            state = w >> format::bits;
        } else {
            const int at = n / 2 - 1 - i, w = state << format::bits | s.choice[at][state];
            s.window[at] = (uint16_t) w;
            state = w % trellis_states;
        }
    }
}

// Least-squares scale of the windows found, from sum(q * entry) and sum(entry^2).
template <class format> static __device__ __forceinline__ trellis_fit fit_scale(int num, int den, float scale) {
    const float fitted_num = scale * (float) num / format::substeps;
    const uint32_t field = num > 0 ? encode_scale<format::mantissa>(fitted_num / den) : 0u;
    const float stored = decode_scale<format::mantissa>(field);
    return {field, stored * (2.0f * fitted_num - stored * den)};
}

template <class format, int n> static __device__ __forceinline__ void judge(trellis_scratch<n> &s, float scale) {
    const int lane = threadIdx.x & 31;
    int num = 0, den = 0;
#pragma unroll
    for (int i = 0; i < n / 32; i++) {
        const int at = lane + 32 * i, entry = format::entry(s.window[at]);
        num += s.q[at] * entry;
        den += entry * entry;
    }
    num = __reduce_add_sync(0xffffffffu, num);
    den = __reduce_add_sync(0xffffffffu, den);
    const trellis_fit fit = fit_scale<format>(num, den, scale);
    if (lane == 0) {
        s.fit = fit;
    }
}

// One bit stream, least significant bit first: scale, start state, symbols. The warp writes 16 bits a lane and round.
template <class format, int n, class windows>
static __device__ __forceinline__ void pack_trellis(uint8_t *block, windows window, uint32_t scale, bool codes) {
    constexpr int state_bits = format::window - format::bits, bytes = format::block_bytes(n);
    const int lane = threadIdx.x & 31;
    uint16_t *words = reinterpret_cast<uint16_t *>(block);
    for (int word = lane; word < bytes / 2; word += 32) {
        uint32_t value = 0;
        if (word == 0) {
            value = scale | (codes ? (uint32_t) (window(0) % trellis_states) << (16 - state_bits) : 0u);
        } else if (codes) {
            const int first_bit = 16 * (word - 1), first = first_bit / format::bits;
#pragma unroll
            for (int i = 0; i <= 16 / format::bits; i++) {
                const int at = first + i, shift = at * format::bits - first_bit;
                if (at < n && shift < 16) {
                    const uint32_t symbol = window(at) >> state_bits;
                    value |= shift >= 0 ? symbol << shift : symbol >> -shift;
                }
            }
        }
        words[word] = (uint16_t) value;
    }
}

template <class format> static __device__ __forceinline__ constexpr int largest_scale() {
    return (31 << format::mantissa) - 1;
}

// The scale that a candidate searches with, 0 if it cannot be stored or there is nothing to search for.
template <class format, int n>
static __device__ __forceinline__ float candidate_scale(const rotated_block<n> &rotated, int candidate) {
    const int field =
        (int) encode_scale<format::mantissa>(rotated.rms) + (candidate - trellis_tries / 2) * trellis_spread;
    const bool usable = rotated.finite && rotated.rms >= 0x1p-26f && field > 0 && field <= largest_scale<format>();
    return usable ? decode_scale<format::mantissa>(field) : 0.0f;
}

// The candidate that explains most, as a block. fit_of(i) and window_of(i, at) give what candidate i has found.
template <class format, int n, class fits, class windows>
static __device__ __forceinline__ void store_best(uint8_t *block, bool finite, bool saturated, fits fit_of,
                                                  windows window_of) {
    int best = -1;
    trellis_fit found = {0, 0.0f};
    for (int i = 0; i < trellis_tries; i++) {
        const trellis_fit fit = fit_of(i);
        if (fit.explained > found.explained) {
            found = fit;
            best = i;
        }
    }
    const uint32_t nan = (31u << format::mantissa) | (1u << (format::mantissa - 1));
    const bool codes = best >= 0 && finite && found.field != 0;
    const uint32_t scale = codes ? saturated ? (uint32_t) largest_scale<format>() : found.field : 0u;
    pack_trellis<format, n>(
        block, [&](int at) { return (uint32_t) window_of(best < 0 ? 0 : best, at); }, finite ? scale : nan, codes);
}

// Encode a block with all trellis_warps of a thread block; each holds the same values.
template <class format, int n>
static __device__ __forceinline__ void encode_trellis(uint8_t *block, const float (&x)[n / 32],
                                                      const branch_costs<format> &costs, trellis_scratch<n> *scratch) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, candidate = warp % trellis_tries,
              barrier_id = 1 + candidate;
    const bool backward = warp >= trellis_tries;
    trellis_scratch<n> &s = scratch[candidate];
    rotated_block<n> rotated;
    rotated.rotate(x);
    // All warps hold what they encode: the next kernel may start. It may even end, and its successors may overwrite the
    // input.
    __syncthreads();
    let_next_kernel_start();
    const float scale = candidate_scale<format, n>(rotated, candidate);
    if (scale > 0.0f) { // the same for both warps of a candidate
        if (!backward) {
            int q[n / 32];
            rotated.template quantise<format>(scale, q);
#pragma unroll
            for (int i = 0; i < n / 32; i++) {
                s.q[lane * (n / 32) + i] = q[i];
                s.coarse[lane * (n / 32) + i] = -cost_value(q[i]);
            }
        }
        barrier(barrier_id, 64);
        if (backward) {
            search_half<format, n, true>(s, costs);
        } else {
            search_half<format, n, false>(s, costs);
        }
        barrier(barrier_id, 64);
        const int middle = meet<format, n>(s);
        if (backward) {
            trace_half<format, n, true>(s, middle);
        } else {
            trace_half<format, n, false>(s, middle);
        }
        barrier(barrier_id, 64);
        if (!backward) {
            judge<format, n>(s, scale);
        }
    } else if (!backward && lane == 0) {
        s.fit = {0, 0.0f};
    }
    __syncthreads();
    if (warp == 0) {
        store_best<format, n>(
            block, rotated.finite, rotated.saturated, [&](int i) { return scratch[i].fit; },
            [&](int i, int at) { return scratch[i].window[at]; });
    }
}

} // namespace turbo_cuda
