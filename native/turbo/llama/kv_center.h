// Centred keys: one vector c per KV layer is subtracted from every key before it is stored. Softmax does not change
// when the same vector is taken from all keys a query sees, so it is never added back on reading. Where all readers can add
// it back, each run of cells has a vector of its own instead (kv_runs.h).
#pragma once

#include "ggml.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"

#include <cstdint>
#include <map>
#include <vector>

class llama_kv_cells;

// The vectors of one cache, by layer, as float32 tensors in the memory of that layer's keys.
struct turbo_kv_centers {
    enum kind {
        center,      // [n_embd_k_gqa], of the keys as they are stored: balanced (kv_balance.h) and, where upstream rotates
                     // the keys of a type (q4_0), rotated; or the centres of runs, f16 (turbo/kv_runs.h)
        key_scale,   // [n_embd_k_gqa], a of kv_balance.h
        query_scale, // [n_head * head_dim], 1 / a for every query head
        kinds
    };
    std::map<uint32_t, ggml_tensor *> by_layer[kinds];
    std::map<const ggml_tensor *, uint32_t> owners; // of each tensor of keys: other layers, and other caches, read them too
    std::map<const ggml_tensor *, ggml_tensor *> runs; // centres of runs, by the tensor of keys that lack them
    std::vector<ggml_context_ptr> contexts;
    std::vector<ggml_backend_buffer_ptr> buffers;

    bool only_measured = false;                        // nothing is allocated, and values are not looked at

    // Adds a vector of `n` floats for layer `il` in memory of kind `buft`; false when memory is short.
    bool add(kind what, uint32_t il, const float * values, int64_t n, ggml_backend_buffer_type_t buft);

    // Adds the centres of runs of `cells_each` cells of the keys `k`, in their memory: one after the other in `values`, and the
    // one centre of all behind them.
    // False when memory is short.
    bool add_runs(uint32_t il, const ggml_tensor * k, const std::vector<float> & values, uint32_t cells_each);

    // Whether keys lack the one centre instead of those of their runs: so it is from a shift of positions on, in all layers.
    bool flat() const;
    void set_flat(bool flat);

    // Bytes by kind of memory, added to `bytes`.
    void count(std::map<ggml_backend_buffer_type_t, size_t> & bytes) const;

private:
    std::map<ggml_backend_buffer_type_t, size_t> measured;

    bool place(ggml_context_ptr ctx, ggml_backend_buffer_type_t buft, ggml_tensor * tensor, const void * values);
};

// A binary operation of ggml: ggml_sub and its kind.
using turbo_kv_operation = ggml_tensor * (*)(ggml_context *, ggml_tensor *, ggml_tensor *);

// operation(keys, a vector of layer `il`), the vector broadcast over the tokens of `keys` ([width, tokens] or
// [head_dim, heads, tokens]); `keys` unchanged when the layer has no such vector.
ggml_tensor * turbo_kv_apply(ggml_context * ctx, const turbo_kv_centers * centers, turbo_kv_centers::kind what, uint32_t il,
                             ggml_tensor * keys, turbo_kv_operation operation);

// keys - c, returned unchanged when there is no centre. `keys` is [n_embd_k_gqa, tokens], to be written into `cells`, or,
// without, [head_dim, heads, cells]: all cells of all streams in order, which ends a K-shift and the use of runs.
ggml_tensor * turbo_kv_center(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys,
                              ggml_tensor * cells = nullptr);

// keys + c of all cells: the stored keys as the model made them (K-shift rotates those).
ggml_tensor * turbo_kv_uncenter(ggml_context * ctx, const turbo_kv_centers * centers, uint32_t il, ggml_tensor * keys);

// The hook in front of a write: an empty cache begins with centres of runs again.
void turbo_kv_begin(turbo_kv_centers * centers, const std::vector<llama_kv_cells> & streams);

// The hook where a graph looks at the cells of `k`: `view`, with the centres of runs that its keys lack, if any.
ggml_tensor * turbo_kv_view(const turbo_kv_centers * centers, const ggml_tensor * k, ggml_tensor * view);
