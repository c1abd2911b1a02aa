// The centres of runs of cells: what llama/kv_center.h subtracts from keys and attention (cpu/fattn.h, cuda) adds back, and
// how all of them find it.
//
// One tensor a layer, f16 [values of a key over all its heads, runs + 1]: row r is taken from every key that is stored in cells
// r * each to (r + 1) * each - 1 of its stream. Softmax does not cancel several centres, so the attention adds each query's
// product with row r to its scores of that run. The last row is the one centre that serves all positions; it stands in for
// all others while the tensor is flat, which it is from a shift of positions on. Lengths and state are the tensor's own
// parameters, so that whoever is handed the tensor reads it right.

#ifndef TURBO_KV_RUNS_H
#define TURBO_KV_RUNS_H

#include <atomic>
#include <cstdint>

#include "ggml.h"

// Runs are whole tiles of the attention: a tile then has one centre.
enum { TURBO_RUN_STEP = 64 };

// The source of GGML_OP_FLASH_ATTN_EXT that holds them; upstream uses 0 to 4.
enum { TURBO_RUNS_SRC = 5 };

// What operators of ours do with keys: the user data of GGML_OP_MAP_CUSTOM2 and 3 whose second source holds centres.
enum turbo_runs_change : intptr_t { TURBO_RUNS_SUBTRACT, TURBO_RUNS_ADD, TURBO_RUNS_FLATTEN };

enum { TURBO_RUNS_MARK = 0x534e5552 };

static inline void turbo_runs_describe(struct ggml_tensor *runs, int32_t cells_each, int32_t cells_of_stream) {
    runs->op_params[0] = cells_each;
    runs->op_params[1] = cells_of_stream;
    runs->op_params[2] = false;
    runs->op_params[3] = TURBO_RUNS_MARK;
}

// Is this such a tensor? A copy that a scheduler made has no parameters and is none.
static inline bool turbo_runs_are(const struct ggml_tensor *tensor) {
    return tensor != nullptr && tensor->op == GGML_OP_NONE && tensor->op_params[3] == TURBO_RUNS_MARK;
}

// Cells of a run; 0 for a tensor that holds one centre for all cells.
static inline int32_t turbo_runs_cells_each(const struct ggml_tensor *runs) { return runs->op_params[0]; }

// How often any of them became flat or ceased to be: a recorded graph of launches (CUDA) is out of date when it has changed.
inline std::atomic<uint64_t> turbo_runs_changes{0};

static inline int32_t turbo_runs_cells_of_stream(const struct ggml_tensor *runs) { return runs->op_params[1]; }

// Whether all keys lack the last row. To be changed only together with the keys.
static inline bool turbo_runs_flat(const struct ggml_tensor *runs) { return runs->op_params[2] != 0; }
static inline void turbo_runs_set_flat(struct ggml_tensor *runs, bool flat) {
    turbo_runs_changes += flat != turbo_runs_flat(runs);
    runs->op_params[2] = flat;
}

// The row that a cell lacks, in one state or the other; cells count on from stream to stream.
static inline int64_t turbo_runs_row(const struct ggml_tensor *runs, int64_t cell, bool flat) {
    return flat ? runs->ne[1] - 1 : cell % turbo_runs_cells_of_stream(runs) / turbo_runs_cells_each(runs);
}

#endif // TURBO_KV_RUNS_H
