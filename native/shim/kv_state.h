// Saved cells of one attention cache. Cells keep their places: attention then adds up in the same order, so what is
// loaded goes on bit by bit as what was saved. (llama.cpp's own format packs them, and leaves out what a sliding window
// has passed.) Not installed.
#pragma once

#include "kv_access.h"
#include "state_io.h"

#include "llama-kv-cells.h"

struct turbo_kv_saved_cell {
    uint32_t index;
    uint32_t saved_index;  // where it lay
    llama_pos pos;
    llama_kv_cell_ext ext;
    std::vector<int32_t> seqs;  // empty: the sequence that is being loaded
};

// What a stream of a cache will hold: checked against the cache, with nothing changed yet.
struct turbo_kv_saved_stream {
    uint32_t stream = 0;
    bool flat = false;  // what its keys lack: one centre, or those of the runs of its cells
    uint32_t head = 0;  // where the search for free cells goes on
    std::vector<turbo_kv_saved_cell> cells;
    std::vector<const uint8_t *> rows;  // K, then V of every layer; null for a layer without
};

// seq < 0: all sequences.
struct turbo_kv_state {
    static bool supported(const llama_kv_cache & cache);
    static void write(const llama_kv_cache & cache, int32_t seq, turbo_state_writer & io);
    static std::vector<turbo_kv_saved_stream> read(const llama_kv_cache & cache, int32_t seq, turbo_state_reader & io);
    static void apply(llama_kv_cache & cache, int32_t seq, const std::vector<turbo_kv_saved_stream> & streams);
};
