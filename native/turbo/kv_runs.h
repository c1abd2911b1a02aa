// The centres of runs of cells: what llama/kv_center.h subtracts from keys and cpu/fattn.h adds back, and how both find it.
//
// One tensor a layer, f16 [values of a key over all its heads, runs + 1]: row r is taken from every key that is stored in cells
// r * each to (r + 1) * each - 1 of its stream. Softmax does not cancel several centres, so the attention adds each query's
// product with row r to its scores of that run. The last row is the one centre that serves all positions; it stands in for
// all others while the tensor is flat, which it is from a shift of positions on. Lengths and state are the tensor's own
// parameters, so that whoever is handed the tensor reads it right. Plain C; includable from C11 and C++17.

#ifndef TURBO_KV_RUNS_H
#define TURBO_KV_RUNS_H

#include <stdbool.h>
#include <stdint.h>

#include "ggml.h"

// Runs are whole tiles of the attention: a tile then has one centre.
enum { TURBO_RUN_STEP = 64 };

// The source of GGML_OP_FLASH_ATTN_EXT that holds them; upstream uses 0 to 4.
enum { TURBO_RUNS_SRC = 5 };

static inline void turbo_runs_describe(struct ggml_tensor *runs, int32_t cells_each, int32_t cells_of_stream) {
    runs->op_params[0] = cells_each;
    runs->op_params[1] = cells_of_stream;
    runs->op_params[2] = false;
}

// Cells of a run; 0 for a tensor that holds one centre for all cells.
static inline int32_t turbo_runs_cells_each(const struct ggml_tensor *runs) { return runs->op_params[0]; }

// Whether all keys lack the last row. To be changed only together with the keys.
static inline bool turbo_runs_flat(const struct ggml_tensor *runs) { return runs->op_params[2] != 0; }
static inline void turbo_runs_set_flat(struct ggml_tensor *runs, bool flat) { runs->op_params[2] = flat; }

// The row that a cell lacks, in one state or the other; cells count on from stream to stream.
static inline int64_t turbo_runs_row(const struct ggml_tensor *runs, int64_t cell, bool flat) {
    return flat ? runs->ne[1] - 1 : cell % runs->op_params[1] / runs->op_params[0];
}

#endif // TURBO_KV_RUNS_H
