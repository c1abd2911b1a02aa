// One flash attention case for tests and benchmarks: tensors with random data, and the op computed in float64.

#ifndef TURBO_TESTS_FATTN_CASE_H
#define TURBO_TESTS_FATTN_CASE_H

#include <stdint.h>

#include <random>
#include <string>
#include <vector>

#include "ggml.h"

#include "turbo/types.h"

namespace fattn_test {

enum mask_kind { mask_none, mask_causal, mask_random, mask_rows, mask_tiles, mask_window, mask_bias, mask_kinds };

struct shape {
    ggml_type type_k = GGML_TYPE_TURBO3, type_v = GGML_TYPE_TURBO3;
    int width_k = 128, width_v = 128;
    int heads = 4, heads_k = 2, heads_v = 2;
    int queries = 1, keys = 64;
    int streams = 1, streams_k = 1, streams_v = 1;
    int mask = mask_none;
    bool mask_per_head = false;
    int mask_streams = 1;
    bool sinks = false;
    float scale = 0.09f, cap = 0.0f, max_bias = 0.0f;
    bool interleaved = true; // heads of a key side by side, as in the cache; false = each head on its own
    int padding = 0;         // unused bytes after each key, filled with 0xff
    int run_tiles = 0;       // tiles of keys that lack a common centre; 0 = keys lack nothing
    bool flat = false;       // all keys lack the last centre instead
    bool poison = false;     // blocks of keys that nobody sees hold 0xff (only where V is a turbo type)

    std::string text() const;
};

// A shape with its data. Tensors point into the vectors.
struct problem {
    shape s;
    ggml_tensor q, k, v, mask, sinks, runs, dst;
    std::vector<uint8_t> k_data, v_data;
    std::vector<float> q_data, dst_data, sink_data;
    std::vector<uint16_t> mask_data, run_data;
    std::vector<float> k_values, v_values; // as decoded: [streams][heads][keys][width]

    problem(const shape &s, unsigned seed);
    problem(const problem &) = delete;
    problem &operator=(const problem &) = delete;

    // The op in float64 on the decoded values, in dst's order; typical receives the rms of V.
    std::vector<double> reference(double *typical) const;
};

// Types that a side may have, by block size of the turbo types (128 or 64).
std::vector<ggml_type> side_types(int block);
std::string type_text(ggml_type type);
bool fits(ggml_type type, int width);

} // namespace fattn_test

#endif // TURBO_TESTS_FATTN_CASE_H
