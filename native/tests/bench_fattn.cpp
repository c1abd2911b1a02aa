// CPU flash attention: ours against upstream's, on the shapes of real models, in one interleaved run.
//
// Links the patched ggml-base and ggml-cpu. Times are the least of all repeats, in ms (with one thread its CPU time,
// which other processes disturb less); ratios are the time of upstream's own op on f16 or q8_0 over the variant's:
// above 1 is faster than it. Lines marked "up" leave the op to upstream. As in a model, a graph holds the op once a
// layer, each with a cache of its own, so that caches come from memory and not from the core's own cache.
//   bench_fattn [threads] [keys] [queries] [repeats] [path] [layers] [heads heads_kv width]

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <memory>

#include "ggml-cpu.h"

#include "fattn_case.h"
#include "turbo/cpu/codec.h"
#include "turbo/cpu/fattn.h"

using namespace fattn_test;

namespace {

struct layer {
    std::vector<uint8_t> k_data, v_data;
    ggml_tensor k, v, dst;

    explicit layer(const problem &p) : k_data(p.k_data), v_data(p.v_data), k(p.k), v(p.v), dst(p.dst) {
        k.data = k_data.data();
        v.data = v_data.data();
    }
};

struct variant {
    ggml_type type_k, type_v;
    bool ours;
    double best = 1e30; // milliseconds a layer
    std::unique_ptr<problem> data;
    std::vector<std::unique_ptr<layer>> layers;
};

// Milliseconds: of this process's CPU for one thread, else of the clock.
double now(int threads) {
    timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec * 1e3 + (double) t.tv_nsec * 1e-6;
}

double run_once(variant *v, int threads, ggml_threadpool *pool) {
    ggml_context *context = ggml_init({1 << 20, NULL, false});
    ggml_cgraph *graph = ggml_new_graph(context);
    for (const std::unique_ptr<layer> &l : v->layers) {
        l->dst.src[1] = &l->k;
        l->dst.src[2] = &l->v;
        ggml_build_forward_expand(graph, &l->dst);
    }
    ggml_cplan plan = ggml_graph_plan(graph, threads, pool);
    std::vector<uint8_t> work(plan.work_size + 64);
    plan.work_data = work.data();
    const double start = now(threads);
    ggml_graph_compute(graph, &plan);
    const double time = now(threads) - start;
    ggml_free(context);
    return time / (double) v->layers.size();
}

void bench(const shape &base, int threads, int repeats, int layers) {
    const int block = base.width_k % 128 ? 64 : 128;
    std::vector<variant> variants;
    const auto add = [&](ggml_type k, ggml_type v, bool ours) {
        shape s = base;
        s.type_k = k;
        s.type_v = v;
        variants.push_back({k, v, ours, 1e30, std::unique_ptr<problem>(new problem(s, 1)), {}});
        for (int i = 0; i < layers; i++) {
            variants.back().layers.emplace_back(new layer(*variants.back().data));
        }
    };
    add(GGML_TYPE_F16, GGML_TYPE_F16, false);
    add(GGML_TYPE_Q8_0, GGML_TYPE_Q8_0, false);
    const ggml_type turbo3 = turbo_type_with_block(GGML_TYPE_TURBO3, block);
    add(turbo3, turbo3, false);
    for (const ggml_type type : side_types(block)) {
        if (type != GGML_TYPE_F16) {
            add(type, type, true);
        }
    }
    add(GGML_TYPE_F16, turbo_type_with_block(GGML_TYPE_TURBO3_TCQ, block), true);
    add(GGML_TYPE_Q8_0, turbo_type_with_block(GGML_TYPE_TURBO3_TCQ, block), true);

    ggml_threadpool_params params = ggml_threadpool_params_default(threads);
    ggml_threadpool *pool = ggml_threadpool_new(&params);
    for (int repeat = 0; repeat < repeats; repeat++) {
        for (variant &v : variants) {
            turbo_cpu_fattn_enable(v.ours);
            v.best = std::min(v.best, run_once(&v, threads, pool));
        }
    }
    ggml_threadpool_free(pool);

    const double values = 2.0 * base.keys * base.heads_k * base.width_k; // of K and V together
    printf("heads %d/%d x %d, %d keys, %d queries, %d threads, %d layers, %s\n", base.heads, base.heads_k, base.width_k,
           base.keys, base.queries, threads, layers, turbo_simd_name());
    for (const variant &v : variants) {
        printf("  %-4s %-14s %-14s %9.3f ms  %6.2f x f16  %6.2f x q8_0  %6.2f G cached values/s\n", v.ours ? "" : "up",
               type_text(v.type_k).c_str(), type_text(v.type_v).c_str(), v.best, variants[0].best / v.best,
               variants[1].best / v.best, values / v.best * 1e-6);
    }
}

} // namespace

int main(int argc, char **argv) {
    const auto number = [&](int i, int otherwise) { return argc > i ? atoi(argv[i]) : otherwise; };
    const int threads = number(1, 1), keys = number(2, 8192), queries = number(3, 1), repeats = number(4, 20);
    const int layers = number(6, queries > 32 ? 1 : 8);
    if (argc > 5 && turbo_simd_select(argv[5]) != 0) {
        fprintf(stderr, "this CPU has no %s\n", argv[5]);
        return 1;
    }
    ggml_cpu_init();
    shape s;
    s.keys = keys;
    s.queries = queries;
    s.mask = mask_causal;
    std::vector<std::vector<int>> models = {{12, 2, 128}, {9, 3, 64}}; // Qwen2.5-1.5B, SmolLM2-135M
    if (argc > 9) {
        models = {{number(7, 0), number(8, 0), number(9, 0)}};
    }
    for (const std::vector<int> &model : models) {
        s.heads = model[0];
        s.heads_k = s.heads_v = model[1];
        s.width_k = s.width_v = model[2];
        bench(s, threads, repeats, layers);
    }
    return 0;
}
