// Writing, checking and placing the cells of one attention cache; see kv_state.h.
#include "kv_state.h"

#include "llama-hparams.h"
#include "turbo/llama/kv_runs.h"
#include "turbo_shim.h"

#include <algorithm>
#include <cstdio>

namespace {

[[noreturn]] void refuse(const char * format, long long a, long long b) {
    char text[160];
    snprintf(text, sizeof(text), format, a, b);
    throw std::runtime_error(text);
}

std::vector<uint32_t> indices(const llama_kv_cells & cells, int32_t seq) {
    std::vector<uint32_t> found;
    for (uint32_t i = 0; i < cells.size(); i++) {
        if (!cells.is_empty(i) && (seq < 0 || cells.seq_has(i, seq))) {
            found.push_back(i);
        }
    }
    return found;
}

// Calls f(first, n) for each run of neighbouring cells.
template <typename F> void for_runs(const std::vector<uint32_t> & cells, F && f) {
    for (size_t i = 0; i < cells.size();) {
        size_t end = i + 1;
        while (end < cells.size() && cells[end] == cells[end - 1] + 1) {
            end++;
        }
        f(cells[i], end - i);
        i = end;
    }
}

// One tensor of a layer as saved: rows of one cell each, or one row a channel where values lie transposed.
struct layout {
    ggml_tensor * tensor;
    size_t cell_bytes;   // of one cell, over all channels
    size_t n_channel;    // 1 unless transposed
    size_t channel_step; // bytes from one channel to the next

    layout(ggml_tensor * t, int64_t n_values, bool transposed, uint32_t n_cells)
        : tensor(t), cell_bytes(t ? ggml_row_size(t->type, n_values) : 0), n_channel(transposed ? n_values : 1),
          channel_step(transposed ? n_cells * ggml_type_size(t->type) : 0) {}

    // Calls f(offset, bytes) for each piece, in saved order.
    template <typename F> void pieces(const std::vector<uint32_t> & cells, F && f) const {
        const size_t width = cell_bytes / n_channel;
        for (size_t c = 0; c < n_channel; c++) {
            for_runs(cells, [&](uint32_t first, size_t n) { f(c * channel_step + first * width, n * width); });
        }
    }
};

// Where the cells go: to the places they came from, or, where one of those is taken, to the first free ones.
void place(const llama_kv_cells & cells, int32_t seq, turbo_kv_saved_stream & saved) {
    const auto is_free = [&](uint32_t i) {
        return seq < 0 || cells.is_empty(i) || (cells.seq_count(i) == 1 && cells.seq_has(i, seq));
    };
    const auto fits = [&](const turbo_kv_saved_cell & c) { return c.index < cells.size() && is_free(c.index); };
    if (std::all_of(saved.cells.begin(), saved.cells.end(), fits)) {
        return;
    }
    uint32_t next = 0;
    for (size_t i = 0; i < saved.cells.size(); i++, next++) {
        while (next < cells.size() && !is_free(next)) {
            next++;
        }
        if (next == cells.size()) {
            refuse("the cache has free cells for %lld of %lld tokens", (long long) i, (long long) saved.cells.size());
        }
        saved.cells[i].index = next;
    }
    saved.head = 0;
}

void read_cells(const llama_kv_cells & cells, int32_t seq, uint32_t n_seq_max, turbo_kv_saved_stream & saved,
                turbo_state_reader & io) {
    const uint32_t n = io.value<uint32_t>();
    saved.head = io.value<uint32_t>();
    if (n > cells.size() || saved.head > cells.size()) {
        refuse("%lld cells were saved, this cache has %lld", n, cells.size());
    }
    saved.cells.resize(n);
    int64_t before = -1;
    for (turbo_kv_saved_cell & cell : saved.cells) {
        cell.index = cell.saved_index = io.value<uint32_t>();
        cell.pos = io.value<llama_pos>();
        cell.ext = io.value<llama_kv_cell_ext>();
        const uint32_t n_seq = io.value<uint32_t>();
        if (cell.index <= before || cell.pos < 0 || (seq < 0 ? n_seq < 1 || n_seq > n_seq_max : n_seq != 0)) {
            refuse("cell %lld at position %lld makes no sense", cell.index, cell.pos);
        }
        before = cell.index;
        for (uint32_t i = 0; i < n_seq; i++) {
            const int32_t id = io.value<int32_t>();
            if (id < 0 || id >= (int32_t) n_seq_max || (i > 0 && id <= cell.seqs.back())) {
                refuse("cell %lld belongs to sequence %lld", cell.index, id);
            }
            cell.seqs.push_back(id);
        }
    }
}

std::vector<uint32_t> places(const turbo_kv_saved_stream & saved) {
    std::vector<uint32_t> found;
    for (const turbo_kv_saved_cell & cell : saved.cells) {
        found.push_back(cell.index);
    }
    return found;
}

// Saved keys as the cells they go to have to hold them.
std::vector<uint8_t> in_place(const turbo_kv_saved_stream & saved, const ggml_tensor & runs, const ggml_tensor & k,
                              const uint8_t * keys) {
    std::vector<turbo_runs_move> moves;
    for (const turbo_kv_saved_cell & cell : saved.cells) {
        moves.push_back({turbo_runs_row(&runs, cell.saved_index, saved.flat),
                         turbo_runs_row(&runs, cell.index, turbo_runs_flat(&runs))});
    }
    std::vector<uint8_t> bytes(keys, keys + moves.size() * ggml_row_size(k.type, k.ne[0]));
    turbo_runs_recode(&runs, k.type, moves, bytes.data());
    return bytes;
}

}  // namespace

const ggml_tensor * turbo_kv_access::runs(const llama_kv_cache & cache, const ggml_tensor * k_stream) {
    if (!cache.turbo_centers) {
        return nullptr;
    }
    const auto found = cache.turbo_centers->runs.find(k_stream->view_src);
    return found == cache.turbo_centers->runs.end() ? nullptr : found->second;
}

// The friend of llama_kv_cache: calls f(layout) for K and V of every layer of a stream.
void turbo_kv_access::for_tensors(const llama_kv_cache & cache, uint32_t stream, const tensor_visitor & f) {
    const uint32_t n_cells = cache.v_cells[stream].size();
    for (const auto & layer : cache.layers) {
        f(layer.k_stream[stream], cache.hparams.n_embd_k_gqa(layer.il), false, n_cells);
        f(layer.v_stream[stream], cache.hparams.n_embd_v_gqa(layer.il), cache.v_trans, n_cells);
    }
}

bool turbo_kv_state::supported(const llama_kv_cache & cache) {
    return turbo_kv_access::owns_cells(cache);
}

void turbo_kv_state::write(const llama_kv_cache & cache, int32_t seq, turbo_state_writer & io) {
    const auto [first, last] = turbo_kv_access::streams(cache, seq);
    io.value((uint8_t) turbo_kv_access::flat(cache));
    for (uint32_t s = first; s < last; s++) {
        const llama_kv_cells & cells = turbo_kv_access::cells(cache, s);
        const std::vector<uint32_t> held = indices(cells, seq);
        io.value((uint32_t) held.size());
        io.value(turbo_kv_access::head(cache, s));
        for (const uint32_t i : held) {
            io.value(i);
            io.value(cells.pos_get(i));
            io.value(cells.ext_get(i));
            std::vector<int32_t> seqs;
            for (int32_t id = 0; seq < 0 && id < (int32_t) turbo_kv_access::n_seq_max(cache); id++) {
                if (cells.seq_has(i, id)) {
                    seqs.push_back(id);
                }
            }
            io.value((uint32_t) seqs.size());
            io.write(seqs.data(), seqs.size() * sizeof(int32_t));
        }
        turbo_kv_access::for_tensors(cache, s, [&](ggml_tensor * t, int64_t n_values, bool transposed, uint32_t n_cells) {
            if (t) {
                const layout rows(t, n_values, transposed, n_cells);
                io.value((int32_t) t->type);
                io.value((uint64_t) rows.cell_bytes);
                rows.pieces(held, [&](size_t offset, size_t bytes) { io.write_tensor(t, offset, bytes); });
            }
        });
    }
}

std::vector<turbo_kv_saved_stream> turbo_kv_state::read(const llama_kv_cache & cache, int32_t seq,
                                                        turbo_state_reader & io) {
    const auto [first, last] = turbo_kv_access::streams(cache, seq);
    std::vector<turbo_kv_saved_stream> streams(last - first);
    const uint8_t flat = io.value<uint8_t>();
    if (flat > 1) {
        refuse("%lld centres of its keys make no sense", flat, 0);
    }
    for (uint32_t s = first; s < last; s++) {
        turbo_kv_saved_stream & saved = streams[s - first];
        saved.stream = s;
        saved.flat = flat != 0;
        const llama_kv_cells & cells = turbo_kv_access::cells(cache, s);
        read_cells(cells, seq, turbo_kv_access::n_seq_max(cache), saved, io);
        turbo_kv_access::for_tensors(cache, s, [&](ggml_tensor * t, int64_t n_values, bool transposed, uint32_t n_cells) {
            saved.rows.push_back(nullptr);
            if (t) {
                const size_t cell_bytes = layout(t, n_values, transposed, n_cells).cell_bytes;
                const int32_t type = io.value<int32_t>();
                const uint64_t bytes = io.value<uint64_t>();
                if (type != t->type || bytes != cell_bytes) {
                    refuse("cells of %lld bytes were saved, this cache has %lld", (long long) bytes, (long long) cell_bytes);
                }
                saved.rows.back() = io.take(saved.cells.size() * cell_bytes);
            }
        });
        place(cells, seq, saved);
    }
    return streams;
}

void turbo_kv_state::apply(llama_kv_cache & cache, int32_t seq, const std::vector<turbo_kv_saved_stream> & streams) {
    if (turbo_kv_access::empty(cache) && !streams.empty()) {
        turbo_kv_access::set_flat(cache, streams.front().flat);
    }
    for (const turbo_kv_saved_stream & saved : streams) {
        llama_kv_cells & cells = turbo_kv_access::cells(cache, saved.stream);
        for (const turbo_kv_saved_cell & cell : saved.cells) {
            cells.pos_set(cell.index, cell.pos);
            cells.ext_set(cell.index, cell.ext);
            for (const int32_t id : cell.seqs) {
                cells.seq_add(cell.index, id);
            }
            if (seq >= 0) {
                cells.seq_add(cell.index, seq);
            }
        }
        turbo_kv_access::head(cache, saved.stream) = saved.head;
        const std::vector<uint32_t> to = places(saved);
        size_t i = 0;
        turbo_kv_access::for_tensors(cache, saved.stream, [&](ggml_tensor * t, int64_t n_values, bool transposed, uint32_t n_cells) {
            const uint8_t * from = saved.rows[i++];
            std::vector<uint8_t> recoded;
            if (const ggml_tensor * runs = t ? turbo_kv_access::runs(cache, t) : nullptr) {
                recoded = in_place(saved, *runs, *t, from);
                from = recoded.data();
            }
            if (t) {
                layout(t, n_values, transposed, n_cells).pieces(to, [&](size_t offset, size_t bytes) {
                    ggml_backend_tensor_set(t, from, offset, bytes);
                    from += bytes;
                });
            }
        });
    }
}
