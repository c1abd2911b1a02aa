// Unpacking a staged tile of K or V to f16 in shared memory, for many columns to use (attend_rows.cuh).
//
// What reads it decides where a lane's chunks go (lane_chunks of its shape). For warps that multiply on their own
// (attend_rows.cuh), a token is a row of head_dim halves in chunks of eight. Lane 4g+t of a warp writes token g and, of
// each block, the chunks i*4+t, which hold the units 2i and 2i+1 of its quarter t (decode.cuh): so a lane stores 16
// bytes at a time, and as a tensor-core operand reads them back the same way. Within a row the chunks are exchanged by
// a mask of the token, so that neither this nor reading a column of chunks (the transposed operand) meets bank
// conflicts.

#pragma once

#include "attend_half.cuh"

namespace turbo_cuda {

// Codes are stored as this part of their integer: with any f16 scale the product is an f16.
static constexpr float code_part = 1.0f / 128.0f;

// Exchange of the chunks of a token.
static __device__ __forceinline__ int chunk_mask(int token) {
    return (token >> 1 & 3) | (token & 1) << 2;
}

// The chunks 4i + t of a token for a constant i: two bases, so that the rest of the address is a constant.
template <int head_dim> struct quarter_chunks {
    static constexpr int eight_rows = 8 * head_dim * 2; // bytes
    int row;                                            // the lane's token of eight
    uint32_t even, odd;

    __device__ __forceinline__ quarter_chunks(int token, int t) : row(token) {
        const int mask = chunk_mask(token), low = token * head_dim * 2 + ((t ^ (mask & 3)) << 4);
        even = low + ((mask & 4) << 4), odd = low - ((mask & 4) << 4);
    }
    __device__ __forceinline__ uint32_t at(int i) const { return (i & 1 ? odd : even) + 64 * i; }
};

// Four unsigned bytes, value + 128, to halves, times code_part and a scale; in their order. A byte becomes the half
// 1024 + byte by setting the upper byte of it. The constants stay in registers (register_table).
struct code_halves {
    register_table<3> constants; // the upper bytes, code_part, and what 1024 + 128 make of it

    __device__ __forceinline__ code_halves() {
        constants.set(
            {0x64646464u, half2_bits(__float2half2_rn(code_part)), half2_bits(__float2half2_rn(-1152.0f * code_part))});
    }
    __device__ __forceinline__ void operator()(uint32_t bytes, __half2 scale, uint32_t &u0, uint32_t &u1) const {
        const __half2 part = as_half2(constants.entry[1]), offset = as_half2(constants.entry[2]);
        const __half2 x = as_half2(byte_permute(bytes, constants.entry[0], 0x4140)),
                      y = as_half2(byte_permute(bytes, constants.entry[0], 0x4342));
        u0 = half2_bits(__hmul2(__hfma2(x, part, offset), scale));
        u1 = half2_bits(__hmul2(__hfma2(y, part, offset), scale));
    }
};

// Unpacks the tokens 8i to 8i + 7 of a tile of codes, a token's quarter a lane. `count` tokens of the tile are real,
// the others become zeros. rows and block_bytes as for tile_scores.
template <class reader, class shape> struct code_unpacker {
    reader codes;
    code_halves to_halves;

    __device__ __forceinline__ explicit code_unpacker(const uint8_t *table) : codes(table) {}
    __device__ __forceinline__ void operator()(uint8_t *to, const tile_rows &rows, int i, int count,
                                               int block_bytes) const {
        const auto chunks = shape::lane_chunks();
        constexpr int eight_rows = decltype(chunks)::eight_rows;
        const uint32_t skip = i * rows.step;
#pragma unroll
        for (int b = 0; b < shape::blocks; b++) {
            const uint32_t block = rows.first + b * block_bytes;
            uint32_t w[reader::words];
            reader::load(w, reader::place(rows.shared, block, threadIdx.x & 3), skip);
            // what lies beyond the end may be any number, or none
            const float scale =
                8 * i + chunks.row < count ? fminf(reader::scale(rows.shared, block + skip), 65504.0f) : 0.0f;
            const __half2 scales = __float2half2_rn(scale);
            auto store = [&](int part, uint32_t r0, uint32_t r1) {
                uint4 halves;
                to_halves(r0, scales, halves.x, halves.y);
                to_halves(r1, scales, halves.z, halves.w);
                *reinterpret_cast<uint4 *>(to + i * eight_rows + chunks.at(b * shape::parts + part)) = halves;
            };
            uint32_t r0, r1;
            codes.template decode<0>(w, r0, r1);
            store(0, r0, r1);
            codes.template decode<1>(w, r0, r1);
            store(1, r0, r1);
            if constexpr (shape::parts == 4) {
                codes.template decode<2>(w, r0, r1);
                store(2, r0, r1);
                codes.template decode<3>(w, r0, r1);
                store(3, r0, r1);
            }
        }
    }
};

// The same for plain formats.
template <class reader, class shape> struct plain_unpacker {
    __device__ __forceinline__ explicit plain_unpacker(const uint8_t *) {}
    __device__ __forceinline__ void operator()(uint8_t *to, const tile_rows &rows, int i, int count,
                                               int block_bytes) const {
        const auto chunks = shape::lane_chunks();
        constexpr int eight_rows = decltype(chunks)::eight_rows;
        const bool real = 8 * i + chunks.row < count;
        reader codes(threadIdx.x & 3);
#pragma unroll
        for (int b = 0; b < shape::blocks; b++) {
            codes.begin(rows.shared + rows.first + b * block_bytes + i * rows.step);
#pragma unroll
            for (int part = 0; part < shape::parts; part++) {
                uint4 halves = make_uint4(0, 0, 0, 0);
                if (real) {
                    codes.in_order(2 * part, halves.x, halves.y);
                    codes.in_order(2 * part + 1, halves.z, halves.w);
                }
                *reinterpret_cast<uint4 *>(to + i * eight_rows + chunks.at(b * shape::parts + part)) = halves;
            }
        }
    }
};

// Call `work` with what unpacks a format. The branch is the same for all lanes of a warp.
template <class shape, class work_type>
static __device__ __forceinline__ void with_unpacker(int format, const uint8_t *table, const work_type &work) {
    constexpr int n = shape::values_per_lane;
    switch (format) {
        case KV_TURBO2: work(code_unpacker<reader_2bit<n, unsigned_bias>, shape>(table)); break;
        case KV_TURBO3: work(code_unpacker<reader_3bit<n, unsigned_bias>, shape>(table)); break;
        case KV_TURBO4: work(code_unpacker<reader_4bit<n, unsigned_bias>, shape>(table)); break;
        case KV_TURBO2_TCQ: work(code_unpacker<reader_trellis<format_turbo2_tcq, n>, shape>(table)); break;
        case KV_TURBO3_TCQ: work(code_unpacker<reader_trellis<format_turbo3_tcq, n>, shape>(table)); break;
        case KV_TURBO4_TCQ: work(code_unpacker<reader_trellis<format_turbo4_tcq, n>, shape>(table)); break;
        case KV_F16: work(plain_unpacker<reader_f16<n>, shape>(table)); break;
        case KV_Q8_0: work(plain_unpacker<reader_q8_0<n>, shape>(table)); break;
        case KV_Q4_0: work(plain_unpacker<reader_q4_0<n>, shape>(table)); break;
    }
}

// Eight tokens of every `step` times eight of a tile, from pass `pass` on.
template <class shape> static __device__ __forceinline__ void
unpack(uint8_t *to, const stage_params &x, const uint8_t *table, const tile_rows &rows, int count, int pass, int step) {
    with_unpacker<shape>(x.format, table, [&](const auto &unpacker) {
#pragma unroll 2
        for (int i = pass; i < shape::keys / 8; i += step) {
            unpacker(to, rows, i, count, x.block_bytes);
        }
    });
}

} // namespace turbo_cuda
