// CPU flash attention kernels in portable C++: vectors of four floats through the compiler's vector extension, which
// becomes SSE2, NEON or plain scalar code.

#include "fattn_generic.h"

namespace turbo_fattn {
namespace {

struct vector4 {
    typedef float reg __attribute__((vector_size(16)));
    typedef int32_t ints __attribute__((vector_size(16)));
    static constexpr int width = 4;
    static constexpr int panel = 4;
    static constexpr int score_vectors = 2;
    static constexpr int value_vectors = 2;

    static reg set1(float x) { return reg{x, x, x, x}; }
    static reg zero() { return set1(0.0f); }
    static reg load(const float *from) {
        reg r;
        memcpy(&r, from, sizeof r);
        return r;
    }
    static void store(float *to, reg r) { memcpy(to, &r, sizeof r); }
    static reg load_i8(const int8_t *from) {
        return reg{(float) from[0], (float) from[1], (float) from[2], (float) from[3]};
    }
    static reg load_nibbles(const uint8_t *from, int shift) {
        return reg{(float) (from[0] >> shift & 15), (float) (from[1] >> shift & 15), (float) (from[2] >> shift & 15),
                   (float) (from[3] >> shift & 15)};
    }
    static reg load_f16(const uint16_t *from) {
        return reg{half_to_float(from[0]), half_to_float(from[1]), half_to_float(from[2]), half_to_float(from[3])};
    }
    static reg add(reg a, reg b) { return a + b; }
    static reg sub(reg a, reg b) { return a - b; }
    static reg mul(reg a, reg b) { return a * b; }
    static reg div(reg a, reg b) { return a / b; }
    static reg fma(reg a, reg b, reg c) { return a * b + c; }
    static reg fms(reg a, reg b, reg c) { return a * b - c; }
    static reg select_gt(reg a, reg b, reg x, reg y) {
        const ints yes = a > b;
        return (reg) (((ints) x & yes) | ((ints) y & ~yes));
    }
    static reg max(reg a, reg b) { return select_gt(a, b, a, b); }
    static reg round(reg x) {
        const reg magic = set1(12582912.0f); // 1.5 * 2^23: its units are ones
        return (x + magic) - magic;
    }
    static reg scale2(reg p, reg n) {
        const ints shifted = (ints) (n + set1(12582912.0f + 127.0f)) << 23; // the low bits of the sum are n + 127
        return p * (reg) shifted;
    }
    static bool any(ints yes) { return (yes[0] | yes[1] | yes[2] | yes[3]) != 0; }
    static bool any_gt(reg a, reg b) { return any(a > b); }
    static bool any_nan(reg a) { return any(a != a); }
    static float top(reg x) {
        const float a = x[0] > x[2] ? x[0] : x[2];
        const float b = x[1] > x[3] ? x[1] : x[3];
        return a > b ? a : b;
    }
    static void transpose(reg (&m)[4]) {
        for (int i = 0; i < 4; i++) {
            for (int j = 0; j < i; j++) {
                const float held = m[i][j];
                m[i][j] = m[j][i];
                m[j][i] = held;
            }
        }
    }
};

const engine portable_floats = float_engine<vector4>();

} // namespace

const kernels portable_kernels = {
    "portable",         vector4::panel,     &portable_floats,       &portable_floats,
    load_rows<vector4>, pack_keys<vector4>, softmax_panel<vector4>,
};

} // namespace turbo_fattn
