// Which instructions to use: found when the library is loaded, or named by TURBO_SIMD.

#include <stdio.h>
#include <stdlib.h>

#include "codec.h"
#include "kernels.h"
#include "simd.h"

#ifdef TURBO_HAVE_X86

static const turbo_kernels kernels_avx2 = {
    .name = "avx2",
    .rotate = turbo_avx2_rotate,
    .unrotate = turbo_avx2_unrotate,
    .sum_squares = turbo_avx2_sum_squares,
    .max_bits = turbo_avx2_max_bits,
    .quantise = turbo_avx2_quantise,
    .choose_scalar = turbo_avx2_choose_scalar,
    .choose_trellis = turbo_avx2_choose_trellis,
    .unpack = turbo_avx2_unpack,
    .unrotate_codes = turbo_avx2_unrotate_codes,
    .dot = turbo_avx2_dot,
};

static turbo_kernels kernels_avx512 = { // completed by add_avx512_extras
    .name = "avx512",
    .rotate = turbo_avx512_rotate,
    .unrotate = turbo_avx512_unrotate,
    .sum_squares = turbo_avx512_sum_squares,
    .max_bits = turbo_avx512_max_bits,
    .quantise = turbo_avx512_quantise,
    .choose_scalar = turbo_avx512_choose_scalar,
    .choose_trellis = turbo_avx2_choose_trellis,
    .unpack = turbo_avx2_unpack,
    .unrotate_codes = turbo_avx512_unrotate_codes,
    .dot = turbo_avx512_dot,
};

// Steps that want more of AVX-512 than its first generation has.
static void add_avx512_extras(void) {
    if (__builtin_cpu_supports("avx512vnni")) {
        kernels_avx512.choose_trellis = turbo_avx512_choose_trellis;
    }
    if (__builtin_cpu_supports("avx512vbmi")) {
        kernels_avx512.unpack = turbo_avx512_unpack;
    }
}

static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

#endif

static const turbo_kernels *active = &turbo_kernels_portable;

const turbo_kernels *turbo_active_kernels(void) {
    return active;
}

const char *turbo_simd_name(void) {
    return active->name;
}

int turbo_simd_select(const char *name) {
    if (strcmp(name, "portable") == 0) {
        active = &turbo_kernels_portable;
        return 0;
    }
#ifdef TURBO_HAVE_X86
    if (strcmp(name, "avx2") == 0 && has_avx2()) {
        active = &kernels_avx2;
        return 0;
    }
    if (strcmp(name, "avx512") == 0 && has_avx512()) {
        add_avx512_extras();
        active = &kernels_avx512;
        return 0;
    }
#endif
    return -1;
}

__attribute__((constructor)) static void select_at_load(void) {
#ifdef TURBO_HAVE_X86
    __builtin_cpu_init();
#endif
    if (turbo_simd_select("avx512") != 0 && turbo_simd_select("avx2") != 0) {
        turbo_simd_select("portable");
    }
    const char *asked = getenv("TURBO_SIMD");
    if (asked != NULL && turbo_simd_select(asked) != 0) {
        fprintf(stderr, "turbo: TURBO_SIMD=%s: no such path on this CPU, using %s\n", asked, active->name);
    }
}
