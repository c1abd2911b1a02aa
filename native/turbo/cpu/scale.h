// The stored scale: a non-negative float with 5 exponent bits and `mantissa` bits, f16's layout without its sign
// (mantissa = 10: the f16 itself, scalar types; mantissa = 5: its top 10 bits, trellis types).

#ifndef TURBO_CPU_SCALE_H
#define TURBO_CPU_SCALE_H

#include <stdint.h>
#include <string.h>

static inline uint32_t turbo_float_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float turbo_float_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

// Largest finite field, and the quiet NaN that marks a block made from non-finite input.
static inline uint32_t turbo_scale_max(int mantissa) {
    return (31u << mantissa) - 1;
}

static inline uint32_t turbo_scale_nan(int mantissa) {
    return (31u << mantissa) | (1u << (mantissa - 1));
}

// Nearest field to a finite value >= 0 (ties to even); saturates at the largest finite one.
static inline uint32_t turbo_scale_encode(float value, int mantissa) {
    const int exponent = (int) (turbo_float_bits(value) >> 23) - 127;
    if (exponent > 15) {
        return turbo_scale_max(mantissa);
    }
    const int e = exponent < -14 ? -14 : exponent;
    // value in units of its last place: below 2^(mantissa + 1), so adding 2^23 rounds it to an integer
    const float units = value * turbo_float_from_bits((uint32_t) (127 - e + mantissa) << 23);
    const uint32_t rounded = turbo_float_bits(units + 8388608.0f) & 0x7fffffu;
    const uint32_t field = ((uint32_t) (e + 14) << mantissa) + rounded; // the implicit bit carries into the exponent
    const uint32_t largest = turbo_scale_max(mantissa);
    return field < largest ? field : largest;
}

static inline float turbo_scale_decode(uint32_t field, int mantissa) {
    const uint32_t exponent = field >> mantissa;
    const uint32_t fraction = field & ((1u << mantissa) - 1);
    if (exponent == 0) {
        return (float) fraction * turbo_float_from_bits((uint32_t) (127 - 14 - mantissa) << 23);
    }
    const uint32_t biased = exponent == 31 ? 255 : exponent + 112;
    return turbo_float_from_bits(biased << 23 | fraction << (23 - mantissa));
}

#endif // TURBO_CPU_SCALE_H
