#include "turbo/llama/kv_runs.h"

#include "llama-context.h"
#include "llama-graph.h"
#include "turbo/cpu/fattn.h"

#include <algorithm>
#include <vector>

uint32_t turbo_run_length(uint32_t n_cells) {
    constexpr uint32_t SHORT_CELLS = 8192, LONGEST = 4; // of runs, in steps
    const uint32_t steps = (n_cells + SHORT_CELLS - 1) / SHORT_CELLS;
    return TURBO_RUN_STEP * std::min(std::max(steps, 1u), LONGEST);
}

static bool is_view(const ggml_tensor * t) {
    return t->op == GGML_OP_VIEW || t->op == GGML_OP_PERMUTE || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_TRANSPOSE;
}

// A centre of each run, as far as reading an operator's shapes goes.
static ggml_tensor stand_in(const ggml_tensor * k) {
    ggml_tensor runs = {};
    runs.buffer = k->buffer;
    runs.type = GGML_TYPE_F16;
    runs.ne[0] = k->ne[0];
    runs.ne[1] = k->ne[1] / TURBO_RUN_STEP + 2;
    runs.ne[2] = runs.ne[3] = 1;
    runs.nb[0] = sizeof(ggml_fp16_t);
    runs.nb[1] = runs.nb[2] = runs.nb[3] = runs.ne[0] * sizeof(ggml_fp16_t);
    turbo_runs_describe(&runs, TURBO_RUN_STEP, (int32_t) k->ne[1]);
    return runs;
}

// Whether an attention like `node`, of any number of rows, adds `runs` where they lie.
static bool adds_runs(const ggml_tensor * node, ggml_tensor * runs) {
    ggml_backend_buffer_type_t buft = ggml_backend_buffer_get_type(runs->buffer);
    ggml_tensor attention = *node;
    attention.src[TURBO_RUNS_SRC] = runs;
    if (buft == ggml_backend_cpu_buffer_type()) {
        return turbo_cpu_fattn_reads(&attention);
    }
    ggml_backend_dev_t device = ggml_backend_buft_get_device(buft);
    if (device == nullptr || ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_GPU) {
        return false;
    }
    for (const int64_t rows : { 1, 2, 3, 8, 9, 16, 17, 512 }) { // a GPU has kernels for few rows and for many
        ggml_tensor q = *node->src[0], mask = {};
        q.ne[1] = attention.ne[2] = rows;
        attention.src[0] = &q;
        if (node->src[3] != nullptr) {
            mask = *node->src[3];
            mask.ne[1] = rows;
            attention.src[3] = &mask;
        }
        if (!ggml_backend_dev_supports_op(device, &attention)) {
            return false;
        }
    }
    return true;
}

bool turbo_runs_are_read(const llama_context * ctx, const ggml_tensor * k) {
    ggml_cgraph * graph = ctx->get_gf_res_reserve()->get_gf();
    ggml_tensor runs = stand_in(k);
    bool read = false;
    for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
        const ggml_tensor * node = ggml_graph_node(graph, i);
        // Views are not read by themselves, and the write is no reader.
        if (is_view(node) || (node->op == GGML_OP_SET_ROWS && node->view_src == k)) {
            continue;
        }
        for (int j = 0; j < GGML_MAX_SRC; ++j) {
            const ggml_tensor * src = node->src[j];
            if (src == nullptr || (src != k && src->view_src != k)) {
                continue;
            }
            if (node->op != GGML_OP_FLASH_ATTN_EXT || j != 1) {
                return false;
            }
            if (!adds_runs(node, &runs)) {
                return false;
            }
            read = true;
        }
    }
    return read;
}

ggml_tensor * turbo_runs_mark(ggml_tensor * view, ggml_tensor * runs) {
    view->src[1] = runs; // a view has one source; a second takes no part in anything but this
    return view;
}

void turbo_runs_attend(ggml_backend_sched_t sched, ggml_backend_t cpu, ggml_tensor * attention) {
    const ggml_tensor * k = attention->src[1];
    while (k != nullptr && is_view(k) && k->src[1] == nullptr) {
        k = k->src[0];
    }
    if (k == nullptr || !is_view(k)) {
        return;
    }
    ggml_tensor * runs = k->src[1];
    attention->src[TURBO_RUNS_SRC] = runs;
    ggml_backend_t home = cpu;
    const bool elsewhere = runs->buffer != nullptr && !ggml_backend_buffer_is_host(runs->buffer);
    for (int i = 0; elsewhere && home == cpu && i < ggml_backend_sched_get_n_backends(sched); ++i) {
        ggml_backend_t backend = ggml_backend_sched_get_backend(sched, i);
        if (ggml_backend_supports_buft(backend, ggml_backend_buffer_get_type(runs->buffer))) {
            home = backend;
        }
    }
    ggml_backend_sched_set_tensor_backend(sched, attention, home);
}

// to[i] = from[i] + sign * center[i], n values
static void add(const ggml_fp16_t * halves, int64_t n_values, float sign, const float * from, float * to) {
    float center[256];
    for (int64_t done = 0; done < n_values; done += 256) {
        const int64_t n = std::min<int64_t>(256, n_values - done);
        ggml_fp16_to_fp32_row(halves + done, center, n);
        for (int64_t i = 0; i < n; ++i) {
            to[done + i] = from[done + i] + sign * center[i];
        }
    }
}

// The same with a row of centres in CPU memory.
static void add_row(const ggml_tensor * runs, int64_t row, float sign, const float * from, float * to) {
    GGML_ASSERT(turbo_runs_are(runs));
    add((const ggml_fp16_t *) ((const char *) runs->data + row * runs->nb[1]), runs->ne[0], sign, from, to);
}

static void subtract_op(ggml_tensor * dst, const ggml_tensor * keys, const ggml_tensor * runs, const ggml_tensor * cells, int ith,
                        int nth, void *) {
    for (int64_t token = ith; token < dst->ne[1]; token += nth) {
        const int64_t row = turbo_runs_row(runs, ((const int64_t *) cells->data)[token], turbo_runs_flat(runs));
        add_row(runs, row, -1.0f, (const float *) ((const char *) keys->data + token * keys->nb[1]),
                (float *) ((char *) dst->data + token * dst->nb[1]));
    }
}

static void add_op(ggml_tensor * dst, const ggml_tensor * keys, const ggml_tensor * runs, int ith, int nth, void *) {
    for (int64_t cell = ith; cell < dst->ne[2]; cell += nth) {
        add_row(runs, turbo_runs_row(runs, cell, turbo_runs_flat(runs)), 1.0f, (const float *) keys->data + cell * runs->ne[0],
                (float *) dst->data + cell * runs->ne[0]);
    }
}

static void flatten_op(ggml_tensor * dst, const ggml_tensor * keys, const ggml_tensor * runs, int ith, int nth, void *) {
    for (int64_t cell = ith; cell < dst->ne[2]; cell += nth) {
        add_row(runs, turbo_runs_row(runs, cell, true), -1.0f, (const float *) keys->data + cell * runs->ne[0],
                (float *) dst->data + cell * runs->ne[0]);
    }
    if (ith == 0) { // the other threads do not look
        turbo_runs_set_flat(dst->src[1], true);
    }
}

ggml_tensor * turbo_runs_subtract(ggml_context * ctx, ggml_tensor * runs, ggml_tensor * keys, ggml_tensor * cells) {
    GGML_ASSERT(keys->type == GGML_TYPE_F32 && keys->ne[0] == runs->ne[0] && keys->nb[0] == sizeof(float));
    GGML_ASSERT(cells->type == GGML_TYPE_I64 && cells->ne[0] == keys->ne[1]);
    return ggml_map_custom3(ctx, keys, runs, cells, subtract_op, GGML_N_TASKS_MAX, (void *) TURBO_RUNS_SUBTRACT);
}

static ggml_tensor * of_all_cells(ggml_context * ctx, ggml_tensor * runs, ggml_tensor * keys, ggml_custom2_op_t op,
                                  turbo_runs_change change) {
    GGML_ASSERT(ggml_is_contiguous(keys) && keys->type == GGML_TYPE_F32 && keys->ne[0] * keys->ne[1] == runs->ne[0]);
    return ggml_map_custom2(ctx, keys, runs, op, GGML_N_TASKS_MAX, (void *) change);
}

ggml_tensor * turbo_runs_add(ggml_context * ctx, ggml_tensor * runs, ggml_tensor * keys) {
    return of_all_cells(ctx, runs, keys, add_op, TURBO_RUNS_ADD);
}

ggml_tensor * turbo_runs_flatten(ggml_context * ctx, ggml_tensor * runs, ggml_tensor * keys) {
    return of_all_cells(ctx, runs, keys, flatten_op, TURBO_RUNS_FLATTEN);
}

void turbo_runs_recode(const ggml_tensor * runs, ggml_type type, const std::vector<turbo_runs_move> & moves, uint8_t * keys) {
    const auto differs = [](const turbo_runs_move & move) { return move.from != move.to; };
    if (std::none_of(moves.begin(), moves.end(), differs)) {
        return;
    }
    std::vector<ggml_fp16_t> rows(ggml_nelements(runs)); // they may lie on a GPU
    ggml_backend_tensor_get(runs, rows.data(), 0, ggml_nbytes(runs));
    std::vector<float> key(runs->ne[0]);
    for (const turbo_runs_move & move : moves) {
        if (differs(move)) {
            ggml_get_type_traits(type)->to_float(keys, key.data(), runs->ne[0]);
            add(&rows[move.from * runs->ne[0]], runs->ne[0], 1.0f, key.data(), key.data());
            add(&rows[move.to * runs->ne[0]], runs->ne[0], -1.0f, key.data(), key.data());
            ggml_quantize_chunk(type, key.data(), keys, 0, 1, runs->ne[0], nullptr);
        }
        keys += ggml_row_size(type, runs->ne[0]);
    }
}
