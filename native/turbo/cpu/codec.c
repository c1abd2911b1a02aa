// The public functions: rows of blocks, by descriptor and by name.

#include "codec.h"

#include "kernels.h"

// ---- by descriptor -------------------------------------------------------------------------------------------------

void turbo_encode(const turbo_type_desc *desc, const float *x, void *y, int64_t n) {
    const turbo_kernels *kernels = turbo_active_kernels();
    const turbo_book *book = turbo_book_of(desc);
    uint8_t *block = (uint8_t *) y;
    for (int64_t i = 0; i < n; i += desc->block, block += desc->bytes) {
        turbo_encode_block(kernels, book, x + i, block, desc->block);
    }
}

static float stored_scale(const turbo_book *book, const uint8_t *block) {
    const uint32_t header = block[0] | (uint32_t) block[1] << 8;
    return turbo_scale_decode(book->states == 0 ? header & 0x7fffu : header & 0x3ffu, book->mantissa);
}

void turbo_decode(const turbo_type_desc *desc, const void *x, float *y, int64_t n) {
    enum { BATCH = 8 }; // blocks unpacked at a time, so that no load waits for the narrower stores before it
    const turbo_kernels *kernels = turbo_active_kernels();
    const turbo_book *book = turbo_book_of(desc);
    const uint8_t *block = (const uint8_t *) x;
    const float unit = book->unit_n[desc->block == 64];
    const int64_t blocks = n / desc->block;
    int8_t codes[BATCH * TURBO_MAX_BLOCK];
    for (int64_t begin = 0; begin < blocks; begin += BATCH) {
        const int count = (int) (blocks - begin < BATCH ? blocks - begin : BATCH);
        kernels->unpack(book, block, (size_t) desc->bytes, count, desc->block, codes);
        for (int b = 0; b < count; b++, block += desc->bytes, y += desc->block) {
            kernels->unrotate_codes(codes + b * desc->block, y, desc->block, stored_scale(book, block) * unit);
        }
    }
}

// ---- rotated domain ------------------------------------------------------------------------------------------------

void turbo_unpack(const turbo_type_desc *desc, const void *blocks, size_t stride, int64_t count, int8_t *codes,
                  float *scales) {
    const turbo_book *book = turbo_book_of(desc);
    const uint8_t *block = (const uint8_t *) blocks;
    turbo_active_kernels()->unpack(book, block, stride, count, desc->block, codes);
    for (int64_t b = 0; b < count; b++, block += stride) {
        scales[b] = stored_scale(book, block) * book->unit;
    }
}

static float orthonormal(int block) {
    return block == 128 ? 0x1.6a09e6p-4f : 0.125f; // 1 / sqrt(block)
}

void turbo_rotate_row(const float *x, float *y, int64_t n, int block) {
    const turbo_kernels *kernels = turbo_active_kernels();
    for (int64_t i = 0; i < n; i += block) {
        kernels->rotate(x + i, y + i, block, orthonormal(block));
    }
}

void turbo_unrotate_row(const float *x, float *y, int64_t n, int block) {
    const turbo_kernels *kernels = turbo_active_kernels();
    for (int64_t i = 0; i < n; i += block) {
        kernels->unrotate(x + i, y + i, block, orthonormal(block));
    }
}

// Dot product of n values in blocks with a rotated row.
static float vec_dot(const turbo_type_desc *desc, int n, const void *x, const float *y) {
    const turbo_kernels *kernels = turbo_active_kernels();
    const turbo_book *book = turbo_book_of(desc);
    const uint8_t *block = (const uint8_t *) x;
    int8_t codes[TURBO_MAX_BLOCK];
    float sum = 0.0f;
    for (int i = 0; i < n; i += desc->block, block += desc->bytes) {
        kernels->unpack(book, block, 0, 1, desc->block, codes);
        sum += stored_scale(book, block) * book->unit * kernels->dot(codes, y + i, desc->block);
    }
    return sum;
}

// ---- by name -------------------------------------------------------------------------------------------------------

#define TURBO_DEFINE(NAME, name, family, k, n, bytes, L, V)                                                            \
    void turbo_encode_row_##name(const float *x, void *y, int64_t count) {                                             \
        turbo_encode(turbo_desc(TURBO_INDEX_##NAME), x, y, count);                                                     \
    }                                                                                                                  \
    void turbo_decode_row_##name(const void *x, float *y, int64_t count) {                                             \
        turbo_decode(turbo_desc(TURBO_INDEX_##NAME), x, y, count);                                                     \
    }                                                                                                                  \
    void turbo_vec_dot_##name(int count, float *s, size_t bs, const void *vx, size_t bx, const void *vy, size_t by,    \
                              int nrc) {                                                                               \
        (void) bs, (void) bx, (void) by, (void) nrc;                                                                   \
        *s = vec_dot(turbo_desc(TURBO_INDEX_##NAME), count, vx, (const float *) vy);                                   \
    }
TURBO_TYPES(TURBO_DEFINE)
#undef TURBO_DEFINE

#define TURBO_DEFINE(NAME, name, n, bytes)                                 \
    void turbo_encode_row_##name(const float *x, void *y, int64_t count) { \
        turbo_rotate_row(x, (float *) y, count, n);                        \
    }                                                                      \
    void turbo_decode_row_##name(const void *x, float *y, int64_t count) { \
        turbo_unrotate_row((const float *) x, y, count, n);                \
    }
TURBO_Q_TYPES(TURBO_DEFINE)
#undef TURBO_DEFINE
