// Codecs of the turbo KV-cache types on the CPU: float32 rows to blocks and back, in portable C, AVX2 and AVX-512.
//
// docs/formats.md defines the blocks. Vocabulary used here:
//   block    n = 128 or 64 consecutive values of one head, with one scale; types.h has the sizes.
//   rotation y = H(s * x) / sqrt(n): fixed signs s, then the Walsh-Hadamard transform H. Orthonormal, so dot products
//            of two rotated rows equal those of the rows.
// Row lengths are in values and must be multiples of the block (checked by ggml when a tensor is made, not here).
// Nothing here allocates, locks or fails; every function may be called from any thread. Little-endian machines only.

#ifndef TURBO_CPU_CODEC_H
#define TURBO_CPU_CODEC_H

#include "turbo/types.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- by descriptor -------------------------------------------------------------------------------------------------

// Encode n float32 values into n / desc->block blocks at y. Finite input never gives a NaN; a block with an infinity
// or a NaN in it decodes to NaN throughout. A scale above the largest of the format saturates there.
void turbo_encode(const turbo_type_desc *desc, const float *x, void *y, int64_t n);

// Decode n values from blocks at x. Bit-equal on every machine and path.
void turbo_decode(const turbo_type_desc *desc, const void *x, float *y, int64_t n);

// ---- for attention kernels: stay in the rotated domain -------------------------------------------------------------

// Unpack `count` blocks that lie `stride` bytes apart into integers: rotated value i of block b is
//     scales[b] * codes[b * desc->block + i],
// in the order of the rotated values. codes: count * block bytes; scales: count floats. No alignment is asked for.
void turbo_unpack(const turbo_type_desc *desc, const void *blocks, size_t stride, int64_t count,
                  int8_t *codes, float *scales);

// Rotate each block of `block` values of a row of n (y may be x), and back. Both are orthonormal.
void turbo_rotate_row(const float *x, float *y, int64_t n, int block);
void turbo_unrotate_row(const float *x, float *y, int64_t n, int block);

// ---- by name, in the shapes that ggml's type traits ask for --------------------------------------------------------

// turbo_encode_row_<name>, turbo_decode_row_<name>: as turbo_encode and turbo_decode.
// turbo_vec_dot_<name>: *s = dot product of n values, vx = blocks, vy = the other row rotated (a dot type's row).
//   bs, bx, by and nrc exist for ggml's signature; nrc is 1.
#define TURBO_DECLARE(NAME, name, family, k, n, bytes, L, V)                     \
    void turbo_encode_row_##name(const float *x, void *y, int64_t count);        \
    void turbo_decode_row_##name(const void *x, float *y, int64_t count);        \
    void turbo_vec_dot_##name(int count, float *s, size_t bs, const void *vx, size_t bx, const void *vy, size_t by, \
                              int nrc);
TURBO_TYPES(TURBO_DECLARE)
#undef TURBO_DECLARE

// The dot types: encode rotates, decode un-rotates.
#define TURBO_DECLARE(NAME, name, n, bytes)                               \
    void turbo_encode_row_##name(const float *x, void *y, int64_t count); \
    void turbo_decode_row_##name(const void *x, float *y, int64_t count);
TURBO_Q_TYPES(TURBO_DECLARE)
#undef TURBO_DECLARE

// ---- instruction sets ----------------------------------------------------------------------------------------------

// The path in use: "portable", "avx2" or "avx512". Chosen at load: the best this CPU has, or the one that the
// environment variable TURBO_SIMD names, if the CPU has it.
const char *turbo_simd_name(void);

// Switch the path (for tests and benchmarks; not while other threads are inside the codecs).
// Returns 0, or -1 if the name is unknown or this CPU lacks it.
int turbo_simd_select(const char *name);

#ifdef __cplusplus
}
#endif

#endif // TURBO_CPU_CODEC_H
