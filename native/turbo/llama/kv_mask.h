// The attention mask of the usual case, quickly: causal, and every used cell of a stream belongs to the one sequence
// being decoded. Upstream asks each cell for its position and its 256-bit set of sequences; at 131,072 cells that is most
// of a millisecond a token, on the CPU while the GPU waits.
#pragma once

#include "llama-batch.h"
#include "llama-hparams.h"
#include "llama-kv-cells.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

// Positions and cells of a sequence in order of position, from one position on. Walking the set that has them costs more
// than all rows of a batch; so it is walked once.
using turbo_cells_by_pos = std::vector<std::pair<llama_pos, uint32_t>>;

static turbo_cells_by_pos turbo_cells_from(const llama_kv_cells & cells, llama_seq_id seq, llama_pos first) {
    const auto & positions = cells.seq_pos_get(seq);
    return { positions.lower_bound({ first, 0 }), positions.end() };
}

// One row of the mask: what a token at position `last` sees of the cells of its sequence, of the last `window`
// positions. Used cells mostly lie together from the first on; then a row is two runs, less the few cells that come
// after `last`. `late` has the cells of all positions of the window, or without one of those after `last`, and may have
// earlier ones.
template <typename T>
static void turbo_mask_row(const llama_kv_cells & cells, const turbo_cells_by_pos & late, llama_pos last,
                           llama_pos window, int64_t n_kv, T keep, T drop, T * row) {
    const int64_t n_used = cells.used_max_p1();
    const auto from = [&](llama_pos first) {
        return std::lower_bound(late.begin(), late.end(), std::make_pair(first, (uint32_t) 0));
    };
    if (window < INT32_MAX) {
        std::fill_n(row, n_kv, drop);
        for (auto at = from(last - window + 1), end = from(last + 1); at != end; ++at) {
            if (at->second < n_kv) {
                row[at->second] = keep;
            }
        }
    } else if (cells.get_used() == n_used && n_used <= n_kv) {
        std::fill_n(row, n_used, keep);
        std::fill_n(row + n_used, n_kv - n_used, drop);
        for (auto at = from(last + 1); at != late.end(); ++at) {
            row[at->second] = drop;
        }
    } else {
        for (int64_t j = 0; j < n_kv; ++j) {
            row[j] = !cells.is_empty(j) && cells.pos_get(j) <= last ? keep : drop;
        }
    }
}

// Fill the mask rows [n_kv] of all tokens: `keep` where a token sees a cell, `drop` elsewhere. Returns false, with
// nothing written, when the case is not the usual one.
template <typename T>
static bool turbo_mask_single_sequence(const llama_ubatch & ubatch, const std::vector<llama_kv_cells> & streams,
                                       const std::vector<uint32_t> & seq_to_stream, llama_swa_type swa_type,
                                       uint32_t n_swa, int64_t n_kv, int64_t n_stream, int64_t n_tps, T keep, T drop,
                                       T * data) {
    if (swa_type != LLAMA_SWA_TYPE_NONE && swa_type != LLAMA_SWA_TYPE_STANDARD) {
        return false;
    }
    for (int64_t s = 0; s < n_stream; ++s) {
        const llama_seq_id seq = ubatch.seq_id[s * n_tps][0];
        for (int64_t i = s * n_tps; i < (s + 1) * n_tps; ++i) {
            if (ubatch.seq_id[i][0] != seq) {
                return false;
            }
        }
        const llama_kv_cells & cells = streams.at(seq_to_stream[seq]);
        if (cells.seq_pos_get(seq).size() != cells.get_used()) {
            return false;
        }
    }
    const llama_pos window = swa_type == LLAMA_SWA_TYPE_STANDARD ? (llama_pos) n_swa : INT32_MAX;
    for (int64_t s = 0; s < n_stream; ++s) {
        const llama_pos * pos = ubatch.pos + s * n_tps;
        const llama_seq_id seq = ubatch.seq_id[s * n_tps][0];
        const llama_kv_cells & cells = streams[seq_to_stream[seq]];
        const llama_pos least = *std::min_element(pos, pos + n_tps);
        const turbo_cells_by_pos late = turbo_cells_from(cells, seq, window < INT32_MAX ? least - window + 1 : least + 1);
        for (int64_t i = 0; i < n_tps; ++i) {
            turbo_mask_row(cells, late, pos[i], window, n_kv, keep, drop, data + (s * n_tps + i) * n_kv);
        }
    }
    return true;
}
