// One tile of K or V: from the cache's bytes into the layout of the engine that computes with it.

#ifndef TURBO_CPU_FATTN_TILE_H
#define TURBO_CPU_FATTN_TILE_H

#include "fattn_kernels.h"
#include "fattn_op.h"

namespace turbo_fattn {

// The engine that computes with a side.
const engine &engine_of(const kernels &kern, const side &s);

// Load `count` <= tile_keys keys of one head, the first at `from`, into the scratch's key tile and scales; the rest
// of the tile becomes zeros. The same for values.
void load_keys(const side &k, const kernels &kern, const scratch &s, const char *from, int count);
void load_values(const side &v, const kernels &kern, const scratch &s, const char *from, int count);

// Ask for a tile's bytes ahead of its use: heads lie side by side in the cache, and the strides between the keys of one
// head defeat the hardware's own prefetching.
void prefetch_tile(const side &s, const char *from, int count);

} // namespace turbo_fattn

#endif // TURBO_CPU_FATTN_TILE_H
