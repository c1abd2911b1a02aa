// CPU flash attention against float64: every pair of types, every instruction set, shapes at random.
//
// Stands alone: built from turbo/cpu and this file, with a small thread pool in place of ggml-cpu's. Scratch memory is
// filled with NaN before each call and guarded at its end, outputs are poisoned, and padding between keys holds 0xff.
//   test_fattn [random cases a path, default 600] [first seed]

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <thread>

#include "ggml-cpu-impl.h"

#include "fattn_case.h"
#include "turbo/cpu/codec.h"
#include "turbo/cpu/fattn.h"
#include "turbo/kv_runs.h"

using namespace fattn_test;

// ---- the part of ggml-cpu's thread pool that ops use ----------------------------------------------------------------

struct ggml_threadpool {
    int threads;
    std::atomic<int> waiting{0}, passed{0}, chunk{0};
};

extern "C" void ggml_barrier(struct ggml_threadpool *pool) {
    const int passed = pool->passed.load();
    if (pool->waiting.fetch_add(1) == pool->threads - 1) {
        pool->waiting.store(0);
        pool->passed.fetch_add(1);
        return;
    }
    while (pool->passed.load() == passed) {
        std::this_thread::yield();
    }
}

extern "C" void ggml_threadpool_chunk_set(struct ggml_threadpool *pool, int value) { pool->chunk.store(value); }

extern "C" int ggml_threadpool_chunk_add(struct ggml_threadpool *pool, int value) {
    return pool->chunk.fetch_add(value);
}

// ---- running --------------------------------------------------------------------------------------------------------

static int failures = 0;

static void check(bool good, const char *what, const std::string &where) {
    if (!good && failures++ < 20) {
        fprintf(stderr, "FAILED %s: %s\n", what, where.c_str());
    }
}

// Compute p.dst; false if the op was not taken by every thread. `planned`: threads that the work buffer is planned for.
static bool compute(problem *p, int threads, int planned, const std::string &where, bool use_ref = false) {
    const uint8_t guard = 0xa5;
    const size_t size = turbo_cpu_fattn_work_size(&p->dst, planned, 64);
    std::vector<uint8_t> work(size + 256, guard);
    memset(work.data(), 0xff, size);
    std::fill(p->dst_data.begin(), p->dst_data.end(), 1e30f);
    struct ggml_threadpool pool;
    pool.threads = threads;
    std::vector<std::thread> others;
    std::atomic<int> taken{0};
    const auto body = [&](int ith) {
        const struct ggml_compute_params params = {ith, threads, size, work.data(), &pool, use_ref};
        taken += turbo_cpu_fattn(&params, &p->dst);
    };
    for (int i = 1; i < threads; i++) {
        others.emplace_back(body, i);
    }
    body(0);
    for (std::thread &other : others) {
        other.join();
    }
    check(taken == 0 || taken == threads, "threads disagree", where);
    for (size_t i = size; i < work.size(); i++) {
        check(work[i] == guard, "wrote past the work buffer", where);
    }
    return taken == threads;
}

// Errors in units of the rms of V: the largest single one, and the rms over an output. Floats are held to float32's
// rounding, which large scores amplify; 16-bit queries and weights (codes, with vectors) to theirs, over a
// thousand times below what the best of the types loses.
struct error_bounds {
    double largest, rms;
};
static const error_bounds float_bounds = {1e-4, 5e-6}, int16_bounds = {1e-2, 5e-4};
static error_bounds worst;

static double larger(double a, double b) {
    return b <= a ? a : b; // a NaN stays
}

static void verify(const shape &s, unsigned seed, int threads, int planned) {
    problem p(s, seed);
    const std::string where = std::string(turbo_simd_name()) + " seed " + std::to_string(seed) + " threads " +
                              std::to_string(threads) + "/" + std::to_string(planned) + " " + s.text();
    // Without vectors, upstream's own types stay upstream's.
    // But nobody else reads keys that lack centres.
    const bool ours = turbo_type_is(s.type_k) || turbo_type_is(s.type_v) || strcmp(turbo_simd_name(), "portable") != 0 ||
                      s.run_tiles > 0;
    const bool taken = compute(&p, threads, planned, where);
    check(taken == ours, taken ? "taken" : "not taken", where);
    if (!taken) {
        return;
    }
    double typical;
    const std::vector<double> wanted = p.reference(&typical);
    double largest = 0.0, squares = 0.0;
    bool zeros = true;
    for (size_t row = 0; row < wanted.size(); row += (size_t) s.width_v) {
        bool blind = true, zero = true;
        for (size_t i = row; i < row + (size_t) s.width_v; i++) {
            const double off = fabs(p.dst_data[i] - wanted[i]);
            largest = larger(largest, off);
            squares += off * off;
            blind &= wanted[i] == 0.0;
            zero &= p.dst_data[i] == 0.0f;
        }
        zeros &= zero || !blind;
    }
    const error_bounds error = {largest / typical, sqrt(squares / (double) wanted.size()) / typical};
    worst = {larger(worst.largest, error.largest), larger(worst.rms, error.rms)};
    const bool int16 = strcmp(turbo_simd_name(), "portable") != 0 &&
                       (turbo_type_is(s.type_k) || turbo_type_is(s.type_v));
    const error_bounds &bounds = int16 ? int16_bounds : float_bounds;
    check(error.largest <= bounds.largest && error.rms <= bounds.rms,
          ("error " + std::to_string(error.largest) + " rms " + std::to_string(error.rms)).c_str(), where);
    check(zeros, "a row that sees nothing is not zero", where);
}

template <class T> static T pick(std::mt19937 &random, std::initializer_list<T> of) {
    return of.begin()[random() % of.size()];
}

static shape random_shape(std::mt19937 &random) {
    shape s;
    s.width_k = pick(random, {64, 128, 128, 192, 256, 512});
    s.width_v = random() % 4 ? s.width_k : pick(random, {64, 128, 256, 512});
    const int block = s.width_k % 128 || s.width_v % 128 || random() % 4 == 0 ? 64 : 128;
    const std::vector<ggml_type> types = side_types(block);
    do {
        s.type_k = types[random() % types.size()];
        s.type_v = types[random() % types.size()];
    } while (s.type_k == GGML_TYPE_F16 && s.type_v == GGML_TYPE_F16);
    s.heads_k = pick(random, {1, 2, 3});
    s.heads_v = s.heads_k;
    s.heads = s.heads_k * pick(random, {1, 2, 3, 4, 6, 7, 8, 16});
    if (random() % 8 == 0) { // K and V with different groups
        s.heads_k = pick(random, {1, 2});
        s.heads_v = 3 - s.heads_k;
        s.heads = 2 * pick(random, {1, 2, 3, 4});
    }
    s.queries = pick(random, {1, 1, 1, 2, 3, 7, 33});
    s.keys = pick(random, {1, 2, 3, 7, 33, 63, 64, 65, 128, 200, 512, 1000});
    s.streams = pick(random, {1, 1, 1, 2, 3});
    s.streams_k = s.streams_v = s.streams;
    if (random() % 8 == 0) {
        s.streams_k = s.streams_v = 1;
    }
    s.mask = (int) (random() % mask_kinds);
    s.mask_per_head = random() % 8 == 0;
    s.mask_streams = random() % 2 ? s.streams : 1;
    s.sinks = random() % 4 == 0;
    s.scale = 1.0f / sqrtf((float) s.width_k) * pick(random, {1.0f, 0.3f, 3.0f});
    s.cap = random() % 5 == 0 ? pick(random, {5.0f, 30.0f}) : 0.0f;
    s.max_bias = random() % 6 == 0 && s.mask != mask_none ? 8.0f : 0.0f;
    s.interleaved = random() % 4 != 0;
    s.padding = pick(random, {0, 0, 2, 10});
    s.poison = turbo_type_is(s.type_v) && random() % 2;
    s.run_tiles = random() % 3 ? 0 : pick(random, {1, 1, 2, 4});
    s.flat = random() % 4 == 0;
    return s;
}

// ---- the tests ------------------------------------------------------------------------------------------------------

static void test_pairs() {
    unsigned seed = 1;
    for (const int block : {128, 64}) {
        for (const ggml_type k : side_types(block)) {
            for (const ggml_type v : side_types(block)) {
                if (k == GGML_TYPE_F16 && v == GGML_TYPE_F16) {
                    continue;
                }
                shape s;
                s.type_k = k;
                s.type_v = v;
                s.heads = 6;
                s.queries = 2;
                s.keys = 97;
                s.mask = mask_causal;
                verify(s, seed++, 1, 1);
            }
        }
    }
}

static void test_shapes(int cases, unsigned first) {
    for (int i = 0; i < cases; i++) {
        const unsigned seed = first + (unsigned) i;
        std::mt19937 random(seed);
        const shape s = random_shape(random);
        if (!fits(s.type_k, s.width_k) || !fits(s.type_v, s.width_v)) {
            continue;
        }
        const int threads = pick(random, {1, 2, 2, 3, 5});
        verify(s, seed, threads, random() % 4 ? threads : threads + 1 + (int) (random() % 4));
    }
}

// Many query rows: several runs a unit, items dealt out.
static void test_prefill() {
    shape s;
    s.type_k = GGML_TYPE_TURBO3_TCQ;
    s.type_v = GGML_TYPE_TURBO2;
    s.heads = 24;
    s.heads_k = s.heads_v = 1;
    s.queries = 70;
    s.keys = 300;
    s.mask = mask_causal;
    verify(s, 7, 2, 2);
    s.width_k = s.width_v = 512;
    s.queries = 41;
    verify(s, 8, 2, 2);
    verify(s, 8, 1, 1);
}

// Keys that lack the centres of runs of cells: every type of key, rows of more than one load of centres, streams, a cap and
// sinks, which a common centre would not pass.
static void test_runs() {
    unsigned seed = 100;
    for (const int block : {128, 64}) {
        for (const ggml_type k : side_types(block)) {
            for (const int keys : {1, 63, 64, 65, 1000}) {
                shape s;
                s.type_k = k;
                s.type_v = block == 64 ? GGML_TYPE_F16 : GGML_TYPE_TURBO4;
                s.heads = 6;
                s.queries = keys > 64 ? 9 : 1;
                s.keys = keys;
                s.streams = s.streams_k = s.streams_v = 2;
                s.mask = mask_causal;
                s.mask_streams = 2;
                s.sinks = keys == 65;
                s.cap = keys == 63 ? 30.0f : 0.0f;
                s.run_tiles = 1;
                verify(s, seed++, 2, 2);
            }
        }
    }
    for (const int run_tiles : {1, 2, 4}) { // 71 tiles: more centres than one load brings
        for (const int queries : {1, 5, 20}) {
            shape s;
            s.type_k = s.type_v = GGML_TYPE_TURBO3_TCQ;
            s.heads = 7;
            s.heads_k = s.heads_v = 1;
            s.queries = queries;
            s.keys = 4500;
            s.mask = queries == 5 ? mask_tiles : mask_causal;
            s.run_tiles = run_tiles;
            verify(s, seed++, 2, 3);
            s.flat = true;
            verify(s, seed++, 2, 2);
        }
    }
}

static void test_refusals() {
    const auto taken = [](shape s, bool use_ref) {
        problem p(s, 3);
        return compute(&p, 1, 1, "refusals " + s.text(), use_ref);
    };
    shape s;
    check(taken(s, false), "refused", s.text());
    check(!taken(s, true), "took the reference run", s.text());
    turbo_cpu_fattn_enable(false);
    check(!taken(s, false), "took an op while switched off", s.text());
    turbo_cpu_fattn_enable(true);
    s.run_tiles = 1;
    turbo_cpu_fattn_enable(false);
    check(taken(s, false) && taken(s, true), "left keys without their centres to upstream", s.text());
    turbo_cpu_fattn_enable(true);
    {
        problem p(s, 3);
        turbo_runs_describe(&p.runs, 96, s.keys);
        check(!turbo_cpu_fattn_reads(&p.dst), "runs that are no whole tiles", s.text());
        turbo_runs_describe(&p.runs, 64, s.keys);
        p.runs.ne[1] = 1;
        check(!turbo_cpu_fattn_reads(&p.dst), "runs that do not cover the keys", s.text());
    }
    s.run_tiles = 0;
    s.type_k = s.type_v = GGML_TYPE_F16;
    check(!taken(s, false), "took f16 with f16", s.text());
    s.type_v = GGML_TYPE_TURBO3;
    s.width_k = 80;
    check(!taken(s, false), "took a head of 80", s.text());

    problem p(shape(), 3);
    struct ggml_threadpool pool;
    pool.threads = 1;
    std::vector<uint8_t> work(4096);
    const struct ggml_compute_params params = {0, 1, work.size(), work.data(), &pool, false};
    check(!turbo_cpu_fattn(&params, &p.dst), "took an op without room for it", p.s.text());
    check(turbo_cpu_fattn_work_size(&p.dst, 1, (size_t) 1 << 30) == (size_t) 1 << 30, "less room than upstream needs",
          p.s.text());
}

// A NaN in a query, a key or a value must come out as one, and only in the rows that see it.
static void test_nan() {
    for (const ggml_type type : {GGML_TYPE_TURBO3, GGML_TYPE_TURBO4_TCQ}) {
        for (int what = 0; what < 3; what++) {
            shape s;
            s.type_k = s.type_v = type;
            s.heads = 4;
            s.queries = 2;
            s.keys = 150;
            problem p(s, 11);
            if (what == 0) {
                p.q_data[5] = NAN; // query 0, head 0
            } else {
                ggml_tensor &t = what == 1 ? p.k : p.v;
                memset((uint8_t *) t.data + 70 * t.nb[1], 0xff,
                       t.nb[0]); // key 70 of the first KV head: query heads 0 and 1
            }
            const std::string where = std::string(turbo_simd_name()) + " nan " + std::to_string(what) + " " + s.text();
            check(compute(&p, 1, 1, where), "refused", where);
            for (int row = 0; row < s.heads * s.queries; row++) {
                const int head = row % s.heads;
                const bool wanted = what == 0 ? row == 0 : head < 2;
                bool got = false;
                for (int i = 0; i < s.width_v; i++) {
                    got |= isnan(p.dst_data[(size_t) (row * s.width_v + i)]);
                }
                check(got == wanted, "NaN lost or spread", where + " row " + std::to_string(row));
            }
        }
    }
}

int main(int argc, char **argv) {
    const int cases = argc > 1 ? atoi(argv[1]) : 600;
    const unsigned first = argc > 2 ? (unsigned) atoi(argv[2]) : 1000;
    int paths = 0;
    for (const char *path : {"portable", "avx2", "avx512"}) {
        if (turbo_simd_select(path) != 0) {
            printf("%-8s not on this CPU\n", path);
            continue;
        }
        paths++;
        worst = {0.0, 0.0};
        test_pairs();
        test_shapes(cases, first);
        test_prefill();
        test_runs();
        test_refusals();
        test_nan();
        printf("%-8s errors over the rms of V: largest %.2g, rms %.2g; %d failures so far\n", path, worst.largest,
               worst.rms, failures);
    }
    return failures == 0 && paths > 0 ? 0 : 1;
}
