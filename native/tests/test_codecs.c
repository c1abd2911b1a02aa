// The codecs on buffers of exactly the size they may touch, at odd addresses: made for the sanitizers (make sanitize).
//
// What the values mean is tested in tests/kv. Here every function of codec.h runs on every type, path and awkward input, so
// that a read or write past a block, a misaligned access, a shift too far or an overflow is seen where it happens.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "turbo/cpu/codec.h"

enum { BLOCKS = 3 };

static int failures;

// A buffer whose end is the end of its allocation, `odd` bytes behind its start.
static void *exact(size_t bytes, size_t odd, void **owner) {
    *owner = malloc(bytes + odd);
    if (!*owner) {
        abort();
    }
    return (char *) *owner + odd;
}

static void fill(float *x, int n, int kind) {
    static unsigned state = 1;
    for (int i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        const float noise = (float) (state >> 8) / (float) (1 << 24) - 0.5f;
        switch (kind) {
            case 0: x[i] = noise; break;
            case 1: x[i] = 0.0f; break;
            case 2: x[i] = noise * 3e38f; break;
            case 3: x[i] = noise * 1e-40f; break;
            case 4: x[i] = i % 7 ? noise : INFINITY; break;
            case 5: x[i] = i % 5 ? noise : NAN; break;
            default: x[i] = i == 3 ? -1e30f : noise; break;
        }
    }
}

static void check(int good, const char *what, const turbo_type_desc *desc, int kind) {
    if (!good && failures++ < 20) {
        fprintf(stderr, "FAILED %s: %s %s, input %d\n", what, turbo_simd_name(), desc->name, kind);
    }
}

static void run(const turbo_type_desc *desc, int kind, size_t odd) {
    const int n = BLOCKS * desc->block;
    const size_t packed = (size_t) BLOCKS * (size_t) desc->bytes;
    void *owners[6];
    float *x = exact((size_t) n * sizeof(float), 4 * odd, &owners[0]);
    uint8_t *blocks = exact(packed, odd, &owners[1]);
    float *y = exact((size_t) n * sizeof(float), 4 * odd, &owners[2]);
    int8_t *codes = exact((size_t) n, odd, &owners[3]);
    float *scales = exact(BLOCKS * sizeof(float), 4 * odd, &owners[4]);
    float *rotated = exact((size_t) n * sizeof(float), 4 * odd, &owners[5]);
    fill(x, n, kind);
    turbo_encode(desc, x, blocks, n);
    turbo_decode(desc, blocks, y, n);
    turbo_unpack(desc, blocks, (size_t) desc->bytes, BLOCKS, codes, scales);
    turbo_rotate_row(x, rotated, n, desc->block);
    turbo_unrotate_row(rotated, rotated, n, desc->block);
    for (int i = 0; i < n; i++) {
        const int finite = kind < 4 || kind > 5;
        check(!finite || !isnan(y[i]), "finite input became NaN", desc, kind);
        check(kind != 0 || fabsf(rotated[i] - x[i]) < 1e-5f, "rotation and back", desc, kind);
    }
    // Bytes that no encoder wrote must decode without harm too: a cache file may hold anything.
    memset(blocks, kind % 2 ? 0xff : 0xa7, packed);
    turbo_decode(desc, blocks, y, n);
    turbo_unpack(desc, blocks, (size_t) desc->bytes, BLOCKS, codes, scales);
    for (int i = 0; i < 6; i++) {
        free(owners[i]);
    }
}

int main(void) {
    static const char *const paths[] = {"portable", "avx2", "avx512"};
    int ran = 0;
    for (int p = 0; p < 3; p++) {
        if (turbo_simd_select(paths[p]) != 0) {
            printf("%-8s not on this CPU\n", paths[p]);
            continue;
        }
        ran++;
        int types = 0;
        for (const turbo_type_desc *desc; (desc = turbo_desc(types)) != NULL; types++) {
            for (int kind = 0; kind < 7; kind++) {
                for (size_t odd = 0; odd < 4; odd++) {
                    run(desc, kind, odd);
                }
            }
        }
        printf("%-8s %d types, %d failures so far\n", paths[p], types, failures);
    }
    return failures == 0 && ran > 0 ? 0 : 1;
}
