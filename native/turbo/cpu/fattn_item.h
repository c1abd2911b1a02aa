// One item of a flash attention plan: the rows of one unit against one chunk of keys.

#ifndef TURBO_CPU_FATTN_ITEM_H
#define TURBO_CPU_FATTN_ITEM_H

#include "fattn_kernels.h"
#include "fattn_op.h"

namespace turbo_fattn {

// Where a unit lies in the op.
struct unit {
    int64_t stream, head, query; // the first of each
    int64_t queries;
    int64_t rows; // queries * group
};

unit unit_of(const op &o, const plan &p, int64_t index);

// What attention over some of the keys gives, before division by the sum: rows in the rotated domain of V.
struct partial {
    float *out;       // [rows][V width]
    float *top, *sum; // [rows]
};

// The tiles from the first to the last one that any query of a stream sees (first = end if there is none). Sliding
// windows leave most of a cache unseen.
tile_range seen_tiles(const op &o, int64_t stream);

// Attend to some tiles of keys. Overwrites *result.
void attend(const op &o, const kernels &kern, const unit &u, const tile_range &tiles, const scratch &s,
            const partial &result);

// Write one row of dst from its sums over all keys: sinks, division, rotation back. `row` is the row's number in the
// unit; out is used as scratch.
void finish_row(const op &o, const unit &u, int64_t row, float *out, float top, float sum);

} // namespace turbo_fattn

#endif // TURBO_CPU_FATTN_ITEM_H
