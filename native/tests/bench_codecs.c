// Speed of the codecs on one thread: encode, unpack to the rotated domain, decode with un-rotation, dot product.
//
//   cc -std=c11 -O2 -I native native/tests/bench_codecs.c native/turbo/cpu/*.c -lm -o bench_codecs
//   ./bench_codecs [path ...]          paths: portable avx2 avx512; default: all that this CPU has
//
// Data stay in the second-level cache (512 blocks). Each figure is the fastest of many short repeats, since other
// processes may share the machine: millions of values a second.

#define _POSIX_C_SOURCE 199309L

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "turbo/cpu/codec.h"

enum { BLOCKS = 512, MAX_VALUES = BLOCKS * TURBO_MAX_BLOCK };

static float input[MAX_VALUES], output[MAX_VALUES], scales[BLOCKS];
static int8_t codes[MAX_VALUES];
static uint8_t blocks[BLOCKS * TURBO_MAX_BYTES];
static volatile float sink;

typedef void (*operation)(const turbo_type_desc *desc, int values);

static void encode(const turbo_type_desc *desc, int values) {
    turbo_encode(desc, input, blocks, values);
}

static void unpack(const turbo_type_desc *desc, int values) {
    turbo_unpack(desc, blocks, (size_t) desc->bytes, values / desc->block, codes, scales);
}

static void decode(const turbo_type_desc *desc, int values) {
    turbo_decode(desc, blocks, output, values);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

// Millions of values a second: fastest repeat within about `budget` seconds.
static double rate(operation run, const turbo_type_desc *desc, int values, double budget) {
    double best = 1e30;
    const double end = now() + budget;
    do {
        const double begin = now();
        run(desc, values);
        const double taken = now() - begin;
        best = taken < best ? taken : best;
    } while (now() < end);
    sink = output[0];
    return 1e-6 * values / best;
}

static double uniform(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double) (state >> 11) * 0x1p-53;
}

int main(int argc, char **argv) {
    static const char *const all[] = {"portable", "avx2", "avx512"};
    const int asked = argc > 1 ? argc - 1 : 3;
    for (int i = 0; i < MAX_VALUES; i++) {
        input[i] = (float) (sqrt(-2 * log(uniform() + 1e-300)) * cos(6.283185307179586 * uniform()));
    }
    printf("%-9s %-20s %9s %9s %9s   M values/s, one thread\n", "path", "type", "encode", "unpack", "decode");
    for (int p = 0; p < asked; p++) {
        const char *path = argc > 1 ? argv[p + 1] : all[p];
        if (turbo_simd_select(path) != 0) {
            printf("%-9s not on this CPU\n", path);
            continue;
        }
        for (int i = 0; i < TURBO_ALL_COUNT; i++) {
            const turbo_type_desc *desc = turbo_desc(i);
            const int encode_values = desc->block * (desc->window == 0 ? 512 : 16); // short enough to go undisturbed
            turbo_encode(desc, input, blocks, desc->block * BLOCKS);
            const double e = rate(encode, desc, encode_values, 0.1);
            const double u = rate(unpack, desc, desc->block * BLOCKS, 0.05);
            const double d = rate(decode, desc, desc->block * BLOCKS, 0.05);
            printf("%-9s %-20s %9.1f %9.0f %9.0f\n", path, desc->name, e, u, d);
        }
    }
    return 0;
}
