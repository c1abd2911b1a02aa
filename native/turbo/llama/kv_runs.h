// Centres of runs of cells: where they can stand in for the one centre of a layer, and how long the runs are.
//
// RoPE turns the mean key, so one centre for all positions of a long context keeps only its slow channels. The keys of 64
// neighbouring positions share much more, and in a stream of one sequence cell and position go together. Subtracting by cell
// rather than by position keeps every key exact wherever it lies. turbo/kv_runs.h has the form of the centres.
#pragma once

#include "turbo/kv_runs.h"

#include "ggml-backend.h"

#include <cstdint>
#include <vector>

class llama_kv_cache;
struct llama_context;

// Cells of a run in a stream of `n_cells`: 64 up to 8,192 cells, 256 from 24,577 on. Centres then take 1 % of what 3-bit keys and
// values take, 4 % at 8,192.
uint32_t turbo_run_length(uint32_t n_cells);

// Whether every reader of the keys `k` in the context's graph is an attention that adds centres of runs back: ours on the CPU,
// or a GPU's if the keys lie there. The graph that was laid out when the context was made is asked.
bool turbo_runs_are_read(const llama_context * ctx, const ggml_tensor * k);

// Marks `view`, the cells of `k` that a graph reads, with the centres they lack (null: none), and returns it.
ggml_tensor * turbo_runs_mark(ggml_tensor * view, ggml_tensor * runs);

// The hook behind flash attention: hands it the centres that its keys are marked with, and keeps it where those lie.
void turbo_runs_attend(ggml_backend_sched_t sched, ggml_backend_t cpu, ggml_tensor * attention);

// keys - centres, keys [values, tokens] that will lie in `cells` (I64: stream by stream).
ggml_tensor * turbo_runs_subtract(ggml_context * ctx, ggml_tensor * runs, ggml_tensor * keys, ggml_tensor * cells);

// keys + centres, for the keys of all cells of all streams in order, [head_dim, heads, cells].
ggml_tensor * turbo_runs_add(ggml_context * ctx, ggml_tensor * runs, ggml_tensor * keys);

// keys - the one centre, of the same shape; once computed, `runs` is flat. What a shift of positions ends with: cells and
// positions no longer go together, and a centre of the wrong neighbourhood is worse than the one for all.
ggml_tensor * turbo_runs_flatten(ggml_context * ctx, ggml_tensor * runs, ggml_tensor * keys);

// One key of a cell that was stored under other circumstances.
struct turbo_runs_move {
    int64_t from, to; // rows of centres: what it lacks, and what it has to lack
};

// Stored keys of type `type`, one behind the other, each with the centre it has to lack. Decodes and encodes where that differs.
void turbo_runs_recode(const ggml_tensor * runs, ggml_type type, const std::vector<turbo_runs_move> & moves, uint8_t * keys);
