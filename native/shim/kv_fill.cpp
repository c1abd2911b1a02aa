// Filling a cache without a prompt, to measure speed at long contexts.
#include "handles.h"
#include "kv_access.h"

#include "llama-context.h"
#include "turbo/llama/kv_caches.h"

#include "ggml-backend.h"
#include "ggml.h"

#include <algorithm>
#include <random>
#include <vector>

namespace {

constexpr int64_t DISTINCT_ROWS = 64;  // random rows made; the cache repeats them

// Random rows of a tensor's type, as bytes: valid blocks, not random bits.
std::vector<char> random_rows(const ggml_tensor * t, uint32_t seed) {
    const int64_t width = t->ne[0];
    std::mt19937 engine(seed);
    std::normal_distribution<float> normal;
    std::vector<float> values((size_t) (width * DISTINCT_ROWS));
    std::generate(values.begin(), values.end(), [&] { return normal(engine); });
    std::vector<char> rows((size_t) (ggml_row_size(t->type, width) * DISTINCT_ROWS));
    ggml_quantize_chunk(t->type, values.data(), rows.data(), 0, DISTINCT_ROWS, width, nullptr);
    return rows;
}

// Write the rows over and over into the first n cells of a stream.
void repeat_rows(const ggml_tensor * stream, int64_t n, uint32_t seed) {
    const std::vector<char> rows = random_rows(stream, seed);
    const size_t row_bytes = rows.size() / DISTINCT_ROWS;
    // In large pieces: one transfer a block of distinct rows would make thousands of small ones.
    const int64_t piece = DISTINCT_ROWS * 64;
    std::vector<char> many;
    for (int64_t i = 0; i < piece / DISTINCT_ROWS; i++) {
        many.insert(many.end(), rows.begin(), rows.end());
    }
    for (int64_t done = 0; done < n; done += piece) {
        ggml_backend_tensor_set(const_cast<ggml_tensor *>(stream), many.data(), (size_t) done * row_bytes,
                                (size_t) std::min(piece, n - done) * row_bytes);
    }
}

}  // namespace

bool turbo_kv_access::fill(llama_kv_cache & cache, int32_t seq, int32_t n, uint32_t seed) {
    const uint32_t stream = cache.seq_to_stream[(size_t) seq];
    llama_kv_cells & cells = cache.v_cells[stream];
    const bool window = cache.swa_type != LLAMA_SWA_TYPE_NONE;
    const int32_t held = window ? std::min<int32_t>(n, (int32_t) std::min(cells.size(), cache.n_swa)) : n;
    if (held > (int32_t) cells.size() || cache.v_trans) {
        return false;
    }
    cells.reset();
    for (int32_t i = 0; i < held; i++) {
        cells.pos_set((uint32_t) i, n - held + i);
        cells.seq_add((uint32_t) i, seq);
    }
    cache.v_heads[stream] = (uint32_t) held % cells.size();
    for (const auto & layer : cache.layers) {
        repeat_rows(layer.k_stream[stream], held, seed + 2 * layer.il);
        if (layer.v != nullptr) {
            repeat_rows(layer.v_stream[stream], held, seed + 2 * layer.il + 1);
        }
    }
    return true;
}

int32_t turbo_kv_fill(turbo_context * ctx, int32_t seq, int32_t n, uint32_t seed) {
    return turbo_guard("kv_fill", [&]() -> int32_t {
        if (seq < 0 || seq >= ctx->n_seq_max || n < 1 || n > (int32_t) llama_n_ctx_seq(ctx->ctx)) {
            return turbo_fail(TURBO_E_ARGUMENT, "%d tokens of sequence %d: the context holds %u tokens of %d sequences", n, seq,
                              llama_n_ctx_seq(ctx->ctx), ctx->n_seq_max);
        }
        const auto caches = turbo_kv_caches(ctx->ctx->get_memory());
        if (caches.empty() || ctx->n_seq_max > 1) {
            return turbo_fail(TURBO_E_UNSUPPORTED, "only plain attention caches of one sequence are filled");
        }
        for (const turbo_kv_cache_ref & ref : caches) {
            if (!turbo_kv_access::fill(*ref.cache, seq, n, seed)) {
                return turbo_fail(TURBO_E_UNSUPPORTED, "this cache cannot be filled: transposed values or too few cells");
            }
        }
        return TURBO_OK;
    });
}
