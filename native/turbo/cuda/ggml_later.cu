// The newest token's trellis codes, searched for beside the rest of the graph.
//
// The attention takes that token from its f32 rows, so nothing in the graph needs its codes. Their search, longer than
// the attention over a short cache, therefore runs on a stream of its own, several layers in a launch: what the rest of
// a layer waits for when another stream parts from its own and takes multiprocessors costs more than the search. The
// last layers' follows at the end. Three things keep it safe: the rows outlive the graph (keep_rows), whoever else
// touches the cache waits (join_before), and so does the end of the graph (turbo_cuda_join).

#include "turbo/cuda/formats.cuh"
#include "turbo/cuda/ggml_glue.cuh"

#include <algorithm>
#include <vector>

using namespace turbo_cuda;

namespace {

struct device_event {
    cudaEvent_t event = nullptr;

    void let_wait(cudaStream_t waits, cudaStream_t until) {
        if (event == nullptr) {
            CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        }
        CUDA_CHECK(cudaEventRecord(event, until));
        CUDA_CHECK(cudaStreamWaitEvent(waits, event));
    }
    ~device_event() {
        if (event != nullptr) {
            (void) cudaEventDestroy(event);
        }
    }
};

// Of this thread, which enqueues one graph at a time.
struct later_writes {
    const ggml_tensor *attention = nullptr; // whose write is put off
    write_tensor tensor[2];
    std::vector<const char *> caches;  // being written, or to be
    std::vector<write_tensor> waiting; // not launched yet
    bool beside = false;               // some run on the other stream
    device_event fork[GGML_CUDA_MAX_DEVICES], join[GGML_CUDA_MAX_DEVICES];
};

} // namespace

static later_writes &state() {
    static thread_local later_writes writes;
    return writes;
}

static cudaStream_t side_stream(ggml_backend_cuda_context &ctx) {
    return ctx.stream(ctx.device, GGML_CUDA_MAX_STREAMS - 1);
}

void turbo_cuda::put_off(const ggml_tensor *attention, const write_tensor &k, const write_tensor &v) {
    state().attention = attention, state().tensor[0] = k, state().tensor[1] = v;
}

bool turbo_cuda::is_put_off(const ggml_tensor *attention) {
    return state().attention == attention;
}

static void launch_waiting(cudaStream_t stream) {
    std::vector<write_tensor> &waiting = state().waiting;
    CUDA_CHECK(write_together(waiting.data(), (int) waiting.size(), stream));
    waiting.clear();
}

void turbo_cuda::write_put_off(ggml_backend_cuda_context &ctx, const ggml_tensor *attention) {
    later_writes &writes = state();
    GGML_ASSERT(writes.attention == attention);
    writes.attention = nullptr;
    for (const write_tensor &w : writes.tensor) {
        writes.caches.push_back(w.target);
        writes.waiting.push_back(w);
    }
    if (writes.waiting.size() == most_together) {
        const cudaStream_t side = side_stream(ctx);
        writes.fork[ctx.device].let_wait(side, ctx.stream());
        launch_waiting(side);
        writes.beside = true;
    }
}

void turbo_cuda::forget_put_off() {
    state().attention = nullptr;
    state().waiting.clear(), state().beside = false;
    if (!state().caches.empty()) { // after an error, and nobody will wait for them
        state().caches.clear();
        (void) cudaDeviceSynchronize();
    }
}

void turbo_cuda_join(ggml_backend_cuda_context &ctx) {
    later_writes &writes = state();
    writes.caches.clear();
    if (!writes.waiting.empty()) {
        launch_waiting(ctx.stream());
    }
    if (writes.beside) {
        writes.beside = false;
        writes.join[ctx.device].let_wait(ctx.stream(), side_stream(ctx));
    }
}

void turbo_cuda::join_before(ggml_backend_cuda_context &ctx, const ggml_tensor *node) {
    const auto touches = [](const ggml_tensor *t) {
        if (t == nullptr || !turbo_type_is(t->type)) {
            return false;
        }
        const auto &caches = state().caches;
        return std::find(caches.begin(), caches.end(), (const char *) base_of(t)->data) != caches.end();
    };
    if (!state().caches.empty() && (touches(node) || std::any_of(node->src, node->src + GGML_MAX_SRC, touches))) {
        turbo_cuda_join(ctx);
    }
}

// The tensors behind the rows of a write: what they are views of, and what they were before K is scaled and centred.
static void keep_source(ggml_tensor *t, ggml_tensor *until, ggml_backend_graph_optimize_params *params) {
    while (t != nullptr) {
        params->add_alloc_dep(params->user_data, const_cast<ggml_tensor *>(base_of(t)), until);
        const bool leads_on =
            ggml_op_is_empty(t->op) || t->op == GGML_OP_MUL || t->op == GGML_OP_SUB || subtracts_runs(t);
        t = leads_on ? t->src[0] : nullptr;
    }
}

// Rows that are read after their write. Those of one token, if codes are searched for behind its attention: until the
// graph's end. Those of a few tokens, which the attention may take from there while it writes its output: until that.
static void keep_rows(ggml_cgraph *cgraph, ggml_backend_graph_optimize_params *params) {
    const auto rows_written = [](const ggml_tensor *node) { // to a cache of ours
        return node->op == GGML_OP_SET_ROWS && turbo_type_is(node->type) ? node->src[1]->ne[0] : 0;
    };
    ggml_tensor **end = cgraph->nodes + cgraph->n_nodes;
    const bool later = std::any_of(cgraph->nodes, end, [&](const ggml_tensor *node) {
        return rows_written(node) == 1 && is_trellis(kv_format_of(node->type));
    });
    for (ggml_tensor **node = cgraph->nodes; node < end; node++) {
        const int64_t rows = rows_written(*node);
        if (rows == 1 && later) {
            keep_source((*node)->src[0], end[-1], params);
            keep_source((*node)->src[1], end[-1], params);
        } else if (rows > 1 && rows <= turbo_max_rows) {
            ggml_tensor **attention =
                std::find_if(node, end, [](const ggml_tensor *t) { return t->op == GGML_OP_FLASH_ATTN_EXT; });
            if (attention < end) {
                keep_source((*node)->src[0], *attention, params);
            }
        }
    }
}

void turbo_cuda_keep(ggml_cgraph *cgraph, ggml_backend_graph_optimize_params *params) {
    if (cgraph->n_nodes > 0) {
        turbo_cuda_order(cgraph, params); // before anything asks what follows what
        keep_rows(cgraph, params);
        turbo_cuda_keep_up_gate(cgraph, params);
    }
}
