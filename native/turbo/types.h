// The turbo KV-cache types: one table, and everything that follows from it.
//
// Plain C11 and C++17 (nvcc included). The table is TURBO_FAMILIES below; names, sizes, block structs, descriptors and
// ggml ids are all derived from it. docs/formats.md says what the bits of a block mean.
//
// Include ggml.h before this header to get the ggml_type helpers at the end of it as well.

#ifndef TURBO_TYPES_H
#define TURBO_TYPES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TURBO_FORMAT 1       // the version of the block format, stored with saved state
#define TURBO_HEADER_BITS 16 // every block begins with a scale (and, for trellis types, its start state)
#define TURBO_MAX_BLOCK 128  // values in the largest block
#define TURBO_MAX_BYTES 66   // bytes in the largest block

// THE table: one row a public type, F(X, NAME, name, k, L, V)
//   k = bits a value; L = bits of the trellis window (0 = scalar, no trellis); V = values a trellis step.
// Each row exists with blocks of 128 values (name) and of 64 (name_64).
#define TURBO_FAMILIES(F, X)               \
    F(X, TURBO2,     turbo2,     2,  0, 1) \
    F(X, TURBO3,     turbo3,     3,  0, 1) \
    F(X, TURBO4,     turbo4,     4,  0, 1) \
    F(X, TURBO2_TCQ, turbo2_tcq, 2,  8, 1) \
    F(X, TURBO3_TCQ, turbo3_tcq, 3,  9, 1) \
    F(X, TURBO4_TCQ, turbo4_tcq, 4, 10, 1)

// Trellises with two values a step, which format 1 was chosen against (docs/formats.md). Codecs, but not ggml types.
#define TURBO_TRIAL_FAMILIES(F, X)                        \
    F(X, TURBO2_TCQ_V2,     turbo2_tcq_v2,     2, 10, 2)  \
    F(X, TURBO3_TCQ_V2,     turbo3_tcq_v2,     3, 12, 2)  \
    F(X, TURBO3_TCQ_V2_L10, turbo3_tcq_v2_l10, 3, 10, 2)

#define TURBO_BLOCK_BYTES(k, n) (TURBO_HEADER_BITS / 8 + (k) * (n) / 8)

#define TURBO_BOTH_BLOCKS(X, NAME, name, k, L, V)                             \
    X(NAME,      name,      name, k, 128, TURBO_BLOCK_BYTES(k, 128), L, V)    \
    X(NAME##_64, name##_64, name, k,  64, TURBO_BLOCK_BYTES(k, 64),  L, V)

// X(NAME, name, family, k, n, bytes, L, V) for each type: NAME as in GGML_TYPE_NAME, name as in ggml_type_name,
// family = public name and codebook, n = values a block, bytes = bytes a block.
#define TURBO_TYPES(X) TURBO_FAMILIES(TURBO_BOTH_BLOCKS, X)
#define TURBO_TRIAL_TYPES(X) TURBO_TRIAL_FAMILIES(TURBO_BOTH_BLOCKS, X)
#define TURBO_ALL_TYPES(X) TURBO_TYPES(X) TURBO_TRIAL_TYPES(X)

// X(NAME, name, n, bytes): the dot types. A row of them is the rotated row as float32, so that a query is rotated once.
#define TURBO_Q_TYPES(X)             \
    X(TURBO_Q,    turbo_q,    128, 512) \
    X(TURBO_Q_64, turbo_q_64,  64, 256)

// Compile-time constants: turbo_bits_<name>, turbo_block_<name>, turbo_bytes_<name>, turbo_window_<name>,
// turbo_step_<name>, and the block itself as bytes (blocks are only 2-byte aligned in a cache row).
#define TURBO_DECLARE(NAME, name, family, k, n, bytes, L, V)                         \
    enum {                                                                           \
        turbo_bits_##name = (k), turbo_block_##name = (n), turbo_bytes_##name = (bytes), \
        turbo_window_##name = (L), turbo_step_##name = (V)                           \
    };                                                                               \
    typedef struct { uint8_t bytes_[bytes]; } turbo_block_t_##name;
TURBO_ALL_TYPES(TURBO_DECLARE)
#undef TURBO_DECLARE

// Dense indices, for tables: TURBO_INDEX_<NAME>. Types that ggml knows come first.
enum turbo_index {
#define TURBO_INDEX(NAME, name, family, k, n, bytes, L, V) TURBO_INDEX_##NAME,
    TURBO_TYPES(TURBO_INDEX)
    TURBO_TYPE_COUNT,
    TURBO_TRIAL_BEGIN = TURBO_TYPE_COUNT - 1,
    TURBO_TRIAL_TYPES(TURBO_INDEX)
    TURBO_ALL_COUNT
#undef TURBO_INDEX
};

// What a type is, as data.
typedef struct turbo_type_desc {
    enum turbo_index index;
    const char *name;   // ggml's type name, "turbo3_tcq_64"
    const char *family; // public name, "turbo3_tcq"
    int bits;           // k: code bits a value
    int block;          // n: values a block
    int bytes;          // bytes a block
    int window;         // L: trellis window in bits, 0 = scalar
    int step;           // V: values a trellis step
} turbo_type_desc;

// Descriptor of an index below TURBO_ALL_COUNT, else NULL.
static inline const turbo_type_desc *turbo_desc(int index) {
    static const turbo_type_desc table[TURBO_ALL_COUNT] = {
#define TURBO_ROW(NAME, name, family, k, n, bytes, L, V) {TURBO_INDEX_##NAME, #name, #family, k, n, bytes, L, V},
        TURBO_ALL_TYPES(TURBO_ROW)
#undef TURBO_ROW
    };
    return index >= 0 && index < TURBO_ALL_COUNT ? &table[index] : NULL;
}

// Descriptor of a type by its own name ("turbo3_64"), NULL if there is none.
static inline const turbo_type_desc *turbo_desc_by_name(const char *name) {
    for (int i = 0; i < TURBO_ALL_COUNT; i++) {
        if (strcmp(turbo_desc(i)->name, name) == 0) {
            return turbo_desc(i);
        }
    }
    return NULL;
}

// The type of the same family with blocks of `block` values (128 or 64), NULL if there is none.
static inline const turbo_type_desc *turbo_desc_sibling(const turbo_type_desc *desc, int block) {
    for (int i = 0; i < TURBO_ALL_COUNT; i++) {
        const turbo_type_desc *other = turbo_desc(i);
        if (other->block == block && strcmp(other->family, desc->family) == 0) {
            return other;
        }
    }
    return NULL;
}

#endif // TURBO_TYPES_H

// ---- helpers on ggml types, when ggml.h has been included ----------------------------------------------------------
#if defined(GGML_FILE_MAGIC) && !defined(TURBO_TYPES_GGML_H)
#define TURBO_TYPES_GGML_H

// Descriptor of a ggml type, NULL if it is not one of the KV types above (the dot types have none).
static inline const turbo_type_desc *turbo_desc_of(enum ggml_type type) {
    switch ((int) type) {
#define TURBO_CASE(NAME, name, family, k, n, bytes, L, V) \
    case GGML_TYPE_##NAME: return turbo_desc(TURBO_INDEX_##NAME);
        TURBO_TYPES(TURBO_CASE)
#undef TURBO_CASE
        default: return NULL;
    }
}

// Is it one of the compressed KV types? (false for the dot types)
static inline int turbo_type_is(enum ggml_type type) {
    return turbo_desc_of(type) != NULL;
}

// Is it one of the dot types (rotated float32 rows)?
static inline int turbo_type_is_q(enum ggml_type type) {
    switch ((int) type) {
#define TURBO_CASE(NAME, name, n, bytes) case GGML_TYPE_##NAME:
        TURBO_Q_TYPES(TURBO_CASE)
#undef TURBO_CASE
            return 1;
        default: return 0;
    }
}

// The ggml type of an index below TURBO_TYPE_COUNT, else GGML_TYPE_COUNT.
static inline enum ggml_type turbo_type_of_index(int index) {
    switch (index) {
#define TURBO_CASE(NAME, name, family, k, n, bytes, L, V) \
    case TURBO_INDEX_##NAME: return GGML_TYPE_##NAME;
        TURBO_TYPES(TURBO_CASE)
#undef TURBO_CASE
        default: return GGML_TYPE_COUNT;
    }
}

// The sibling of a KV type with blocks of `block` values (the type itself if it already has them);
// GGML_TYPE_COUNT if the type is not ours or the size is neither 128 nor 64.
static inline enum ggml_type turbo_type_with_block(enum ggml_type type, int block) {
    const turbo_type_desc *desc = turbo_desc_of(type);
    const turbo_type_desc *other = desc ? turbo_desc_sibling(desc, block) : NULL;
    return other ? turbo_type_of_index(other->index) : GGML_TYPE_COUNT;
}

// The other block size: turbo3 <-> turbo3_64.
static inline enum ggml_type turbo_type_sibling(enum ggml_type type) {
    const turbo_type_desc *desc = turbo_desc_of(type);
    return desc ? turbo_type_with_block(type, desc->block == 128 ? 64 : 128) : GGML_TYPE_COUNT;
}

#endif // GGML_FILE_MAGIC
