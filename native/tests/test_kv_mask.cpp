// The quick mask of a lone sequence against its definition, for caches with holes, in any order, after others have left
// them. Exit 1 if a row is wrong or too few batches were of the kind that it is for.

#include "turbo/llama/kv_mask.h"

#include <cstdio>
#include <random>

namespace {

constexpr uint16_t KEEP = 0, DROP = 0xfc00, UNSET = 77;

struct batch_case {
    std::vector<llama_kv_cells> streams;
    std::vector<std::vector<std::pair<uint32_t, llama_pos>>> used;  // of each stream: cell and position
    int n_tps, n_kv;
    bool foreign;
};

batch_case random_case(std::mt19937 & rng) {
    batch_case c;
    const int size = 64 + rng() % 200, n_stream = 1 + rng() % 2;
    c.streams.resize(n_stream);
    c.used.resize(n_stream);
    c.n_tps = 1 + rng() % 20;
    c.n_kv = size - rng() % 20;
    c.foreign = rng() % 8 == 0;
    for (int s = 0; s < n_stream; s++) {
        llama_kv_cells & cells = c.streams[s];
        cells.resize(size);
        std::vector<llama_pos> positions(1 + rng() % (size - 1));
        for (size_t i = 0; i < positions.size(); i++) {
            positions[i] = (llama_pos) i;
        }
        if (rng() % 3 == 0) {
            std::shuffle(positions.begin(), positions.end(), rng);
        }
        const bool holes = rng() % 3 == 0;
        for (uint32_t cell = 0, i = 0; cell < (uint32_t) size && i < positions.size(); cell++) {
            if (holes && rng() % 5 == 0) {
                continue;
            }
            cells.pos_set(cell, positions[i]);
            cells.seq_add(cell, s);
            c.used[s].push_back({ cell, positions[i++] });
        }
        for (uint32_t cell = 0; c.foreign && cell < (uint32_t) size; cell++) {
            if (cells.is_empty(cell)) {
                cells.pos_set(cell, 3);
                cells.seq_add(cell, n_stream);
                break;
            }
        }
        c.n_kv = std::max<int>(c.n_kv, cells.used_max_p1());
    }
    return c;
}

}  // namespace

int main() {
    std::mt19937 rng(7);
    int taken = 0, rows = 0, wrong = 0;
    for (int round = 0; round < 4000; round++) {
        const batch_case c = random_case(rng);
        const int n_stream = (int) c.streams.size(), n = c.n_tps * n_stream;
        std::vector<uint32_t> stream_of = { 0, 1, 0 };
        std::vector<llama_pos> pos(n);
        std::vector<llama_seq_id> seq(n);
        std::vector<llama_seq_id *> seqs(n);
        for (int i = 0; i < n; i++) {
            const auto & used = c.used[i / c.n_tps];
            const bool newest = rng() % 2 == 0;
            pos[i] = newest ? std::max(0, (int) used.size() - c.n_tps + i % c.n_tps) : used[rng() % used.size()].second;
            seq[i] = i / c.n_tps;
            seqs[i] = &seq[i];
        }
        llama_ubatch batch = {};
        batch.n_tokens = n, batch.pos = pos.data(), batch.seq_id = seqs.data();
        const bool window = rng() % 2 == 0;
        const uint32_t n_swa = 1 + rng() % 64;
        std::vector<uint16_t> mask((size_t) n * c.n_kv, UNSET);
        if (!turbo_mask_single_sequence<uint16_t>(batch, c.streams, stream_of,
                                                  window ? LLAMA_SWA_TYPE_STANDARD : LLAMA_SWA_TYPE_NONE, n_swa, c.n_kv, n_stream,
                                                  c.n_tps, KEEP, DROP, mask.data())) {
            wrong += !c.foreign || mask != std::vector<uint16_t>(mask.size(), UNSET);
            continue;
        }
        taken++;
        for (int i = 0; i < n; i++, rows++) {
            std::vector<uint16_t> want(c.n_kv, DROP);
            for (const auto & [cell, position] : c.used[i / c.n_tps]) {
                if (position <= pos[i] && (!window || pos[i] - position < (llama_pos) n_swa) && cell < (uint32_t) c.n_kv) {
                    want[cell] = KEEP;
                }
            }
            wrong += !std::equal(want.begin(), want.end(), mask.begin() + (size_t) i * c.n_kv);
        }
    }
    printf("kv mask: %d batches, %d rows, %d wrong\n", taken, rows, wrong);
    return wrong != 0 || taken < 2000;
}
