// The slow, plain version of everything the kernels do, in double, straight from docs/formats.md. Host code only.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "../../turbo/cuda/attend.h"
#include "../../turbo/cuda/tables.cuh"

namespace reference {

namespace book = turbo_cuda::book;
using turbo_cuda::KV_TURBO2;
using turbo_cuda::KV_TURBO2_TCQ;
using turbo_cuda::KV_TURBO4;

inline float half_to_float(uint16_t h) {
    const int exponent = (h >> 10) & 31, mantissa = h & 1023;
    const float sign = h & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) {
        return mantissa ? NAN : sign * INFINITY;
    }
    return sign * (exponent ? std::ldexp(1024.0f + mantissa, exponent - 25) : std::ldexp((float) mantissa, -24));
}

inline uint16_t float_to_half(float x) { // round to nearest even, finite range only
    uint32_t bits;
    memcpy(&bits, &x, 4);
    const uint16_t sign = (bits >> 16) & 0x8000;
    const float magnitude = std::fabs(x);
    if (magnitude >= 65520.0f) {
        return sign | 0x7c00;
    }
    int exponent;
    std::frexp(magnitude, &exponent);
    const int shift = std::max(exponent - 11, -24);
    const long steps = std::lrint(std::ldexp((double) magnitude, -shift));
    return sign | (uint16_t) (steps >= 2048  ? ((shift + 26) << 10)
                              : shift == -24 ? steps
                                             : ((shift + 25) << 10 | (steps & 1023)));
}

struct book_view {
    const int8_t *entries;
    float unit; // rotated value = scale * unit * entry
    int bits, window;
};

inline book_view book_of(int format) {
    switch (format) {
        case turbo_cuda::KV_TURBO2: return {book::turbo_book_turbo2, TURBO_UNIT_turbo2, 2, 0};
        case turbo_cuda::KV_TURBO3: return {book::turbo_book_turbo3, TURBO_UNIT_turbo3, 3, 0};
        case turbo_cuda::KV_TURBO4: return {book::turbo_book_turbo4, TURBO_UNIT_turbo4, 4, 0};
        case turbo_cuda::KV_TURBO2_TCQ:
            return {book::turbo_book_turbo2_tcq, TURBO_UNIT_turbo2_tcq, 2, turbo_window_turbo2_tcq};
        case turbo_cuda::KV_TURBO3_TCQ:
            return {book::turbo_book_turbo3_tcq, TURBO_UNIT_turbo3_tcq, 3, turbo_window_turbo3_tcq};
        default: return {book::turbo_book_turbo4_tcq, TURBO_UNIT_turbo4_tcq, 4, turbo_window_turbo4_tcq};
    }
}

// Code of value i of a scalar block of n values.
inline int scalar_code(const uint8_t *block, int bits, int i) {
    const uint8_t *words = block + 2 + i / 32 * bits * 4;
    auto nibble = [&](int word, int m) { return (words[4 * word + m / 2] >> (4 * (m & 1))) & 15; };
    const int j = i % 32;
    if (bits == 4) {
        return nibble(j / 8, j % 8);
    }
    if (bits == 2) {
        return (nibble(j % 16 / 8, j % 8) >> (j >= 16 ? 2 : 0)) & 3;
    }
    if (j < 24) {
        return nibble(j / 8, j % 8) & 7;
    }
    return (nibble(0, j - 24) >> 3) | (nibble(1, j - 24) >> 3) << 1 | (nibble(2, j - 24) >> 3) << 2;
}

// `count` bits of the stream of a block from bit `first`.
inline int stream_bits(const uint8_t *block, int first, int count) {
    int value = 0;
    for (int i = 0; i < count; i++) {
        value |= ((block[(first + i) / 8] >> ((first + i) % 8)) & 1) << i;
    }
    return value;
}

inline float block_scale(const uint8_t *block, bool trellis) {
    return half_to_float(trellis ? (uint16_t) (stream_bits(block, 0, 10) << 5) : (uint16_t) (block[0] | block[1] << 8));
}

template <class T> void hadamard(T *x, int n) {
    for (int h = 1; h < n; h *= 2) {
        for (int i = 0; i < n; i++) {
            if (!(i & h)) {
                const T a = x[i], b = x[i + h];
                x[i] = a + b;
                x[i + h] = a - b;
            }
        }
    }
}

inline int sign_of(int n, int i) {
    const uint32_t *signs = n == 128 ? book::turbo_signs_128 : book::turbo_signs_64;
    return (signs[i / 32] >> (i % 32)) & 1 ? -1 : 1;
}

// What the attention of single tokens reads turbo4 as (docs/performance.md): entries as multiples of 1.6458747 steps.
inline double rounded_entry(int entry) {
    return 1.6458747 * (std::floor(63.5 + 0.6049 * entry) - 63.0);
}

// A block of n values back in the original domain; `rounded` as above, if the format is.
inline void decode_block(const uint8_t *block, int format, int n, double *out, bool rounded = false) {
    const book_view b = book_of(format);
    const double scale = (double) block_scale(block, b.window != 0) * b.unit / std::sqrt((double) n);
    for (int i = 0; i < n; i++) {
        const int index =
            b.window ? stream_bits(block, 16 + b.bits * (i + 1) - b.window, b.window) : scalar_code(block, b.bits, i);
        out[i] = rounded && format == KV_TURBO4 ? rounded_entry(b.entries[index]) : b.entries[index];
    }
    hadamard(out, n);
    for (int i = 0; i < n; i++) {
        out[i] *= scale * sign_of(n, i);
    }
}

inline int block_bytes(int format, int n) {
    return 2 + book_of(format).bits * n / 8;
}

// One row of one head in double. f16 and q8_0 and q4_0 as ggml stores them.
inline void decode_row(const uint8_t *row, int format, int block, int n, double *out, bool rounded = false) {
    if (format < turbo_cuda::KV_F16) {
        for (int i = 0; i < n; i += block) {
            decode_block(row + i / block * block_bytes(format, block), format, block, out + i, rounded);
        }
        return;
    }
    for (int i = 0; i < n; i++) {
        const uint8_t *b = row + (format == turbo_cuda::KV_Q8_0 ? 34 : 18) * (i / 32);
        const double d = half_to_float(b[0] | b[1] << 8);
        const int j = i % 32;
        switch (format) {
            case turbo_cuda::KV_F16: out[i] = half_to_float(row[2 * i] | row[2 * i + 1] << 8); break;
            case turbo_cuda::KV_Q8_0: out[i] = d * (int8_t) b[2 + j]; break;
            default: out[i] = d * ((j < 16 ? b[2 + j] & 15 : b[2 + j - 16] >> 4) - 8); break;
        }
    }
}

inline int row_bytes(int format, int block, int n) {
    switch (format) {
        case turbo_cuda::KV_F16: return 2 * n;
        case turbo_cuda::KV_Q8_0: return 34 * (n / 32);
        case turbo_cuda::KV_Q4_0: return 18 * (n / 32);
        default: return block_bytes(format, block) * (n / block);
    }
}

// A query as kernels that multiply codes with bytes see it: each block rotated, its largest value 127 steps.
inline std::vector<double> byte_query(const float *q, int block, int n) {
    std::vector<double> x(q, q + n);
    for (int b = 0; b < n; b += block) {
        double *at = &x[b], top = 0;
        for (int i = 0; i < block; i++) {
            at[i] *= sign_of(block, i);
        }
        hadamard(at, block);
        for (int i = 0; i < block; i++) {
            top = std::max(top, std::fabs(at[i]));
        }
        for (int i = 0; top > 0 && i < block; i++) {
            at[i] = std::rint(at[i] * (127 / top)) * (top / 127);
        }
        hadamard(at, block);
        for (int i = 0; i < block; i++) {
            at[i] *= sign_of(block, i) / (double) block;
        }
    }
    return x;
}

inline double dot(const float *q, const double *k, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        sum += q[i] * k[i];
    }
    return sum;
}

// Products of a query with what its head's keys lack: runs of `run` cells have a row of `centres` each, `stride` halves
// apart; with run = 0 all have the first one.
inline std::vector<double> run_products(const float *q, const uint16_t *centres, size_t stride, int run, int n_kv,
                                        int n) {
    std::vector<double> products(n_kv), row(n);
    for (int j = 0; j < n_kv; j++) {
        const int number = run > 0 ? j / run : 0;
        if (j > 0 && (run == 0 || j % run != 0)) {
            products[j] = products[j - 1];
            continue;
        }
        for (int i = 0; i < n; i++) {
            row[i] = half_to_float(centres[number * stride + i]);
        }
        products[j] = dot(q, row.data(), n);
    }
    return products;
}

// Attention of one query over n_kv rows (row-major doubles), as the graph defines it. `added` to the products with the
// rows of k; mask may be null.
inline void attention(const double *q, const std::vector<double> &k, const std::vector<double> &v,
                      const std::vector<double> &added, const uint16_t *mask, const float *sink, int n_kv, int n,
                      double scale, double soft_cap, double *out) {
    std::vector<double> s(n_kv);
    double top = sink ? *sink : -INFINITY;
    for (int j = 0; j < n_kv; j++) {
        double product = added[j];
        for (int i = 0; i < n; i++) {
            product += q[i] * k[(size_t) j * n + i];
        }
        s[j] = product * scale;
        if (soft_cap != 0) {
            s[j] = soft_cap * std::tanh(s[j] / soft_cap);
        }
        s[j] += mask ? half_to_float(mask[j]) : 0.0;
        top = std::max(top, s[j]);
    }
    double sum = sink ? std::exp(*sink - top) : 0.0;
    std::fill(out, out + n, 0.0);
    for (int j = 0; j < n_kv; j++) {
        const double p = top == -INFINITY ? 0.0 : std::exp(s[j] - top);
        sum += p;
        for (int i = 0; p != 0 && i < n; i++) {
            out[i] += p * v[(size_t) j * n + i];
        }
    }
    for (int i = 0; i < n; i++) {
        out[i] = sum > 0 ? out[i] / sum : 0.0;
    }
}

} // namespace reference
