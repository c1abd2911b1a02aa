// Trellis encoding of eight blocks at a time, for throughput: the same search as trellis.cuh with branch costs and path
// costs summed by tensor cores.
//
// One product of a step is windows x blocks: row w of a is what window w costs as a function of the value, a column of
// b is the value of one block, and c holds what the paths to the predecessors cost, so that the result is what every
// branch would come to and only minima are left to find. All of it are whole numbers below 2^24, exact in f32. Every
// sum has 2^23 in it: seen as an integer, a float of that size is the number itself. Its low bits are the choices made
// on the way since they were last taken off: of one step or, with 2 and 3 bits a value, of two.
//
// Six warps have eight blocks; a warp takes one candidate scale and one direction of all of them. Lane 4g+t has the
// blocks 2t and 2t+1 and eight states, those whose predecessors are the eight (or sixteen) states that it reads. The
// backward direction is the forward one with the bits of windows and states in reverse order.

#pragma once

#include "trellis.cuh"

namespace turbo_cuda {

static constexpr int batch_blocks = 8;

// How the costs of a format are counted.
template <class format> struct batch_units {
    static constexpr int bits = format::bits;
    static constexpr int steps = bits == 4 ? 1 : 2;     // whose choices a cost carries
    static constexpr int choices = bits == 3 ? 64 : 16; // costs are multiples of it
    static constexpr int value = bits == 3 ? 4 : 8,
                         most = value * 250; // values are counted in 1/value of a codebook step
    static constexpr int square = value == 4 ? 256 : 512;
    // Costs, in 2 / value squared steps, are relative to the squared value in units of `square`, so that they neither
    // grow nor fall much. Rounding that may take half a unit a step.
    static constexpr float start = 8388608.0f + 32.0f * square * choices;
    // A block with values beyond this many codebook steps may cost too much; it is counted half as finely. (With 4 bits
    // no block does.)
    static constexpr int far = bits == 4 ? INT_MAX : 144;
    static_assert(1 << bits * steps <= choices, "choices fit below costs");
    static_assert(choices * 127 * most < 1 << 23, "products are exact beside 2^23");
};

// Shared memory of one candidate and direction.
template <class format, int n> struct alignas(16) batch_pass {
    static constexpr int steps = batch_units<format>::steps;
    uint32_t choice[n / 2 - steps][trellis_states];
    union {
        float cost[trellis_states * batch_blocks];
        struct {                                         // when the costs are no longer needed
            uint32_t last_choice[steps][trellis_states]; // continues `choice`
            int2 sums[batch_blocks];                     // of value * entry and of entry^2
        };
    };

    // Choices of `steps` steps from `step` on. One step: word 8g + block has those of lane group g's states, four bits
    // each. Two steps: byte 64g + 8 * block + k those of its state k. Later, at every step, windows of all blocks.
    __device__ __forceinline__ uint32_t *choices(int step) {
        return reinterpret_cast<uint32_t *>(this) + step * trellis_states;
    }
    __device__ __forceinline__ uint16_t *windows(int step) { return reinterpret_cast<uint16_t *>(choices(step)); }
};

// What else is kept of a block.
struct batch_block {
    uint8_t *target;            // null: there is none
    float scale[trellis_tries]; // 0: not searched for
    bool coarse[trellis_tries]; // counted half as finely
    bool finite, saturated;
};

template <class format, int n> struct batch_scratch {
    batch_pass<format, n> pass[trellis_warps];
    int16_t value[trellis_tries][batch_blocks][n + 2]; // in 1/64 of a codebook step; rows in different banks
    batch_block block[batch_blocks];
};

// Costs of states are stored by twos of neighbouring states and of blocks (16 bytes), placed so that neither reading
// nor writing meets a bank conflict: state 8a + b of the blocks 2t and 2t + 1. In floats.
static __device__ __forceinline__ int batch_place(int a, int b, int t) {
    const int j = b >> 1;
    return (((a >> 1) * 4 + j) * 8 + 2 * t + ((a ^ a >> 1 ^ j) & 1)) * 4 + (b & 1) * 2;
}

static __device__ __forceinline__ uint32_t half_bits(float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

template <class format, int n> struct batch_search {
    using units = batch_units<format>;
    using pass_type = batch_pass<format, n>;
    static constexpr int bits = format::bits, branches = 1 << bits, pairs = branches / 2, half = n / 2;
    static constexpr int steps = units::steps;
    static constexpr int quads = bits == 4 ? 8 : 4; // of predecessor costs a lane reads: two states, two blocks
    uint32_t table[4][pairs][2];                    // of two states, one for each half of the product's depth

    // The k-th state of a lane group.
    static __device__ __forceinline__ int state_of(int g, int k) {
        return bits == 2 ? 2 * g + (k >> 2) + 16 * (k & 3) : g + 8 * k;
    }

    // A forward window as the format's.
    static __device__ __forceinline__ int window_of(int w, bool backward) {
        return backward ? (int) (__brev((uint32_t) w) >> (32 - format::window)) : w;
    }

    // Independent of the blocks. Even t: the factors of the value and of its square. Odd t: those of the squared entry
    // and of the choice. f16 rounds large squares, which does not matter with 2 and 3 bits; with 4 the second pair is
    // the constant part of the cost, choice and all, in two pieces.
    __device__ __forceinline__ explicit batch_search(bool backward) {
        const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            const int state = state_of(g, 2 * k + (t >> 1));
#pragma unroll
            for (int b = 0; b < branches; b++) {
                const int e = format::entry(window_of(state << bits | b, backward));
                const int constant = e * e * (units::value / 2) * units::choices + b;
                const float first = t % 2 == 0  ? e * units::choices
                                    : bits == 4 ? constant >> 10
                                                : e * e,
                            second = t % 2 == 0  ? units::square * units::choices
                                     : bits == 4 ? constant & 1023
                                                 : b;
                table[k][b / 2][b & 1] = half_bits(first, second);
            }
        }
    }

    // The columns of a block.
    struct columns {
        int shift; // from 1/64 of a codebook step, less one
        __half2 most, square;
        bool coarse;

        __device__ __forceinline__ explicit columns(bool counted_coarsely) : coarse(bits != 4 && counted_coarsely) {
            shift = (units::value == 4 ? 3 : 2) + coarse;
            most = __float2half2_rn((float) (coarse ? units::most / 2 : units::most));
            square = __floats2half2_rn(0.0f, (coarse ? 2.0f : 1.0f) / (2 * units::value * units::square));
        }

        // For the first pair: (-value, its square), the value as costs see it.
        __device__ __forceinline__ uint32_t of_value(int q) const {
            const __half2 rounded = __half2half2(__int2half_rn(((q >> shift) + 1) >> 1)),
                          x = __hmin2(__hmax2(rounded, __hneg2(most)), most);
            // adding 1024 leaves a whole number
            const __half2 factors = __hfma2(x, square, __floats2half2_rn(-1.0f, 0.0f)),
                          column = __hadd2(__hfma2(x, factors, __floats2half2_rn(0.0f, 1024.0f)),
                                           __floats2half2_rn(0.0f, -1024.0f));
            return *reinterpret_cast<const uint32_t *>(&column);
        }

        // For the second pair, in a step and the one after it.
        __device__ __forceinline__ uint32_t constant(int step) const {
            constexpr int factor = units::value / 2 * units::choices;
            return bits == 4 ? half_bits(1024.0f, 1.0f)
                             : half_bits((float) (coarse ? factor / 2 : factor), (float) (1 << bits * step));
        }
    };

    // Choices of eight states of a block; they are taken off the costs. Of one step: state k's at bit 4k, as sums of
    // whole numbers in f32, which leave the integer pipe alone. Of two: a byte a state.
    static __device__ __forceinline__ void take_choices(int (&cost)[8], uint32_t (&choice)[steps]) {
        uint32_t four[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            int bare[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                bare[k] = cost[4 * i + k] & -units::choices;
            }
            if constexpr (steps == 1) {
                float sum = 8388608.0f;
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float taken = __int_as_float(cost[4 * i + k]) - __int_as_float(bare[k]);
                    sum = fmaf(taken, (float) (1 << 4 * k), sum);
                }
                four[i] = __float_as_uint(sum);
            } else {
                const uint32_t low = byte_permute(cost[4 * i], cost[4 * i + 1], 0x0040),
                               high = byte_permute(cost[4 * i + 2], cost[4 * i + 3], 0x0040);
                four[i] = byte_permute(low, high, 0x5410);
            }
#pragma unroll
            for (int k = 0; k < 4; k++) {
                cost[4 * i + k] = bare[k];
            }
        }
        if constexpr (steps == 1) {
            choice[0] = byte_permute(four[0], four[1], 0x5410);
        } else {
            choice[0] = four[0], choice[1] = four[1];
        }
    }

    static __device__ __forceinline__ void store_choices(uint32_t *to, const uint32_t (&chosen)[2][steps]) {
        const int lane = threadIdx.x & 31;
        if constexpr (steps == 1) {
            reinterpret_cast<uint2 *>(to)[lane] = make_uint2(chosen[0][0], chosen[1][0]);
        } else {
            reinterpret_cast<uint4 *>(to)[lane] = make_uint4(chosen[0][0], chosen[0][1], chosen[1][0], chosen[1][1]);
        }
    }

    // All steps of one direction; `coarse`: the block of this lane's g. The choices of the last one or two are left in
    // `chosen`: their place still has costs.
    __device__ __forceinline__ void run(pass_type &pass, const int16_t (*value)[n + 2], bool coarse, bool backward,
                                        uint32_t (&chosen)[2][steps]) const {
        const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        const uint32_t mask[2] = {t == 0 ? ~0u : 0u, t == 2 ? ~0u : 0u};
        const columns block(coarse);
        uint32_t constant[steps][2];
#pragma unroll
        for (int step = 0; step < steps; step++) {
            constant[step][0] = t == 1 ? block.constant(step) : 0u;
            constant[step][1] = t == 3 ? block.constant(step) : 0u;
        }
        const int row = bits == 4 ? 2 * (g & 3) : g;
        const float *from[2] = {pass.cost + batch_place(row, 0, t), pass.cost + batch_place(row ^ 1, 0, t)};
        float *to[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            to[i] = pass.cost +
                    (bits == 2 ? batch_place(2 * i + (g >> 2), 2 * (g & 3), t) - 128 * i : batch_place(i, g, t));
        }
        for (int i = lane; i < trellis_states * batch_blocks; i += 32) {
            pass.cost[i] = units::start;
        }
        const int16_t *values = value[g] + (backward ? n - 1 : 0);
        const int direction = backward ? -1 : 1;
        uint32_t column = block.of_value(*values);
        __syncwarp();
#pragma unroll 1
        for (int i = 0;; i += steps) {
#pragma unroll
            for (int step = 0; step < steps; step++) {
                float4 old[quads];
#pragma unroll
                for (int j = 0; j < quads; j++) {
                    old[j] = *reinterpret_cast<const float4 *>(from[(j ^ j >> 2) & 1] + (j & 3) * 32);
                }
                const uint32_t b[2] = {(column & mask[0]) | constant[step][0], (column & mask[1]) | constant[step][1]};
                values += direction; // after the last step, the first value of the other direction
                column = block.of_value(*values);
                int least[2][8];
#pragma unroll
                for (int k = 0; k < 8; k++) {
#pragma unroll
                    for (int j = 0; j < pairs; j++) {
                        float sum[4];
                        mma_f16_k8(sum, table[k >> 1][j], b[k & 1], old[bits == 2 ? 2 * (k >> 2) + j : j]);
#pragma unroll
                        for (int side = 0; side < 2; side++) {
                            const int first = __float_as_int(sum[side]), second = __float_as_int(sum[side + 2]);
                            least[side][k] = j == 0 ? min(first, second) : __vimin3_s32(least[side][k], first, second);
                        }
                    }
                }
                if (step == steps - 1) {
                    take_choices(least[0], chosen[0]);
                    take_choices(least[1], chosen[1]);
                }
                __syncwarp(); // everything has been read
                if constexpr (bits == 2) {
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        *reinterpret_cast<int4 *>(to[k & 1] + k * 128) =
                            make_int4(least[0][k], least[1][k], least[0][k + 4], least[1][k + 4]);
                    }
                } else {
#pragma unroll
                    for (int k = 0; k < 8; k++) {
                        *reinterpret_cast<int2 *>(to[(k ^ k >> 1) & 1] + (k >> 1) * 128) =
                            make_int2(least[0][k], least[1][k]);
                    }
                }
                if (step < steps - 1) {
                    __syncwarp();
                }
            }
            if (i == half - steps) {
                break;
            }
            store_choices(pass.choices(i), chosen);
            __syncwarp();
        }
    }

    // The state in the middle of the best path of block (lane % 8).
    static __device__ __forceinline__ int meet(const pass_type &forward, const pass_type &backward) {
        const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
        uint32_t best[2] = {~0u, ~0u};
#pragma unroll
        for (int b = 0; b < 8; b++) {
            const int state = 8 * g + b, reversed = (int) (__brev((uint32_t) state) >> 26);
            const int2 x = *reinterpret_cast<const int2 *>(forward.cost + batch_place(g, b, t));
            const int2 y = *reinterpret_cast<const int2 *>(backward.cost + batch_place(reversed >> 3, reversed & 7, t));
            constexpr uint32_t base = 2u * 0x4b000000u; // of two sums of the least size
            best[0] = min(best[0], ((uint32_t) x.x + (uint32_t) y.x - base) * 4 + state);
            best[1] = min(best[1], ((uint32_t) x.y + (uint32_t) y.y - base) * 4 + state);
        }
        static_assert(units::choices * 4 >= trellis_states, "a state fits below a cost");
#pragma unroll
        for (int step = 4; step < 32; step *= 2) {
            best[0] = min(best[0], __shfl_xor_sync(0xffffffffu, best[0], step));
            best[1] = min(best[1], __shfl_xor_sync(0xffffffffu, best[1], step));
        }
        const uint32_t even = __shfl_sync(0xffffffffu, best[0], (lane & 7) >> 1),
                       odd = __shfl_sync(0xffffffffu, best[1], (lane & 7) >> 1);
        return (int) ((lane & 1 ? odd : even) % trellis_states);
    }

    // Forward windows of both directions from the middle outwards, by lanes 0-7 for forward's and 8-15 for backward's
    // blocks; they take the place of choices that have been followed.
    static __device__ __forceinline__ void trace(pass_type &forward, pass_type &backward, int middle) {
        const int lane = threadIdx.x & 31, block = lane % batch_blocks;
        pass_type &pass = lane & batch_blocks ? backward : forward;
        int state = lane & batch_blocks ? (int) (__brev((uint32_t) middle) >> 26) : middle;
#pragma unroll 1
        for (int i = half - steps; i >= 0; i -= steps) {
            const int g = bits == 2 ? (state & 15) >> 1 : state & 7,
                      k = bits == 2 ? 4 * (state & 1) + (state >> 4) : state >> 3;
            const int chosen = steps == 1 ? (int) (pass.choices(i)[8 * g + block] >> 4 * k)
                                          : reinterpret_cast<const uint8_t *>(pass.choices(i))[64 * g + 8 * block + k];
            uint16_t window[steps];
#pragma unroll
            for (int step = steps - 1; step >= 0; step--) {
                window[step] = (uint16_t) (state << bits | (chosen >> bits * step & (branches - 1)));
                state = window[step] % trellis_states;
            }
            __syncwarp(); // all blocks have followed these steps
#pragma unroll
            for (int step = 0; step < steps; step++) {
                if (lane < 2 * batch_blocks) {
                    pass.windows(i + step)[block] = window[step];
                }
            }
        }
    }

    // What the windows of this direction explain of the values, for fit_scale.
    static __device__ __forceinline__ void judge(pass_type &pass, const int16_t (*value)[n + 2], bool backward) {
        const int lane = threadIdx.x & 31, block = lane % batch_blocks;
        int2 sums = {0, 0};
#pragma unroll 4
        for (int i = lane / batch_blocks; i < half; i += 32 / batch_blocks) {
            const int entry = format::entry(window_of(pass.windows(i)[block], backward));
            sums.x += value[block][backward ? n - 1 - i : i] * entry;
            sums.y += entry * entry;
        }
#pragma unroll
        for (int step = batch_blocks; step < 32; step *= 2) {
            sums.x += __shfl_xor_sync(0xffffffffu, sums.x, step);
            sums.y += __shfl_xor_sync(0xffffffffu, sums.y, step);
        }
        if (lane < batch_blocks) {
            pass.sums[block] = sums;
        }
    }
};

// Block `slot` of the thread block, by one warp: its values for all candidates.
template <class format, int n> static __device__ __forceinline__ void
batch_take_in(batch_scratch<format, n> &s, int slot, const float (&x)[n / 32], uint8_t *target) {
    const int first = (threadIdx.x & 31) * (n / 32);
    rotated_block<n> rotated;
    rotated.rotate(x);
    batch_block block = {target, {}, {}, rotated.finite, rotated.saturated};
#pragma unroll
    for (int candidate = 0; candidate < trellis_tries; candidate++) {
        const float scale = block.scale[candidate] = candidate_scale<format, n>(rotated, candidate);
        int q[n / 32];
        rotated.template quantise<format>(scale > 0.0f ? scale : 1.0f, q);
        bool far = false;
#pragma unroll
        for (int i = 0; i < n / 32; i++) {
            far |= abs(q[i]) / format::substeps >= batch_units<format>::far;
        }
        block.coarse[candidate] = __any_sync(0xffffffffu, far);
#pragma unroll
        for (int i = 0; i < n / 32; i += 2) {
            *reinterpret_cast<uint32_t *>(&s.value[candidate][slot][first + i]) =
                (uint32_t) (uint16_t) q[i] | (uint32_t) q[i + 1] << 16;
        }
    }
    if ((threadIdx.x & 31) == 0) {
        s.block[slot] = block;
    }
}

// Search for eight blocks, between two barriers of their warps. `warp` of trellis_warps; barriers are `barrier_id` and
// the two after it.
template <class format, int n> static __device__ __forceinline__ void
search_batch(batch_scratch<format, n> &s, const batch_search<format, n> &search, int warp, int barrier_id) {
    const int candidate = warp % trellis_tries;
    const bool backward = warp >= trellis_tries;
    batch_pass<format, n> &pass = s.pass[warp];
    uint32_t last[2][batch_units<format>::steps];
    search.run(pass, s.value[candidate], s.block[(threadIdx.x & 31) / 4].coarse[candidate], backward, last);
    barrier(barrier_id + candidate, 64);
    int middle = 0;
    if (!backward) {
        middle = search.meet(s.pass[candidate], s.pass[candidate + trellis_tries]);
    }
    barrier(barrier_id + candidate, 64); // the costs are no longer needed
    search.store_choices(pass.last_choice[0], last);
    barrier(barrier_id + candidate, 64);
    if (!backward) {
        search.trace(s.pass[candidate], s.pass[candidate + trellis_tries], middle);
    }
    barrier(barrier_id + candidate, 64);
    search.judge(pass, s.value[candidate], backward);
}

// Block `slot` from what the search has found, by one warp.
template <class format, int n>
static __device__ __forceinline__ void batch_give_out(batch_scratch<format, n> &s, int slot) {
    const batch_block &block = s.block[slot];
    if (block.target == nullptr) {
        return;
    }
    trellis_fit fit[trellis_tries];
#pragma unroll
    for (int i = 0; i < trellis_tries; i++) {
        const int2 x = s.pass[i].sums[slot], y = s.pass[i + trellis_tries].sums[slot];
        const bool searched = block.scale[i] > 0.0f;
        fit[i] = fit_scale<format>(searched ? x.x + y.x : 0, x.y + y.y, block.scale[i]);
    }
    store_best<format, n>(
        block.target, block.finite, block.saturated, [&](int i) { return i == 0   ? fit[0]
                                                                         : i == 1 ? fit[1]
                                                                                  : fit[2]; },
        [&](int i, int at) {
            const bool backward = at >= n / 2;
            return batch_search<format, n>::window_of(
                s.pass[backward ? i + trellis_tries : i].windows(backward ? n - 1 - at : at)[slot], backward);
        });
}

} // namespace turbo_cuda
