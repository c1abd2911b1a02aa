// Flash attention over compressed KV caches on the CPU: sharing the items of a plan among threads, and putting partial
// results together.

#include "fattn.h"

#include <math.h>
#include <string.h>

#include "ggml-cpu-impl.h"

#include "codec.h"
#include "fattn_item.h"
#include "fattn_kernels.h"
#include "fattn_op.h"
#include "turbo/kv_runs.h"

namespace turbo_fattn {
namespace {

bool enabled = true;

bool is_ours(const ggml_tensor *dst, op *o) {
    if (!read_op(dst, o)) {
        return false;
    }
    if (o->runs.tiles_each != 0) {
        return true; // nobody else knows what these keys lack
    }
    if (!enabled) {
        return false;
    }
    // Upstream's own quantised types: worth it with vectors only.
    return o->k.desc || o->v.desc || active_kernels() != &portable_kernels;
}

// Partial results: all outputs of all items, then all tops, then all sums.
partial partial_of(const op &o, const plan &p, char *base, int64_t item) {
    const int64_t rows = p.units * p.chunks * p.unit_rows, first = item * p.unit_rows;
    float *out = (float *) (void *) base;
    float *top = out + rows * o.v.width;
    return {out + first * o.v.width, top + first, top + rows + first};
}

void run_item(const op &o, const plan &p, const scratch &s, char *partials, int64_t index, int64_t chunk) {
    const unit u = unit_of(o, p, index);
    const partial result = p.chunks > 1 ? partial_of(o, p, partials, index * p.chunks + chunk)
                                        : partial{s.out, s.top, s.sum};
    const tile_range all = s.seen[u.stream];
    const int64_t tiles = all.end - all.first;
    attend(o, *active_kernels(), u, {all.first + chunk * tiles / p.chunks, all.first + (chunk + 1) * tiles / p.chunks},
           s, result);
    if (p.chunks == 1) {
        for (int64_t row = 0; row < u.rows; row++) {
            finish_row(o, u, row, result.out + row * o.v.width, result.top[row], result.sum[row]);
        }
    }
}

// One row of a unit from the partial results of its chunks.
void reduce_row(const op &o, const plan &p, char *partials, int64_t index, const unit &u, int64_t row, float *out) {
    float top = -INFINITY, sum = 0.0f;
    memset(out, 0, (size_t) o.v.width * sizeof(float));
    for (int64_t chunk = 0; chunk < p.chunks; chunk++) {
        const partial part = partial_of(o, p, partials, index * p.chunks + chunk);
        if (part.sum[row] == 0.0f) {
            continue;
        }
        const float now = top >= part.top[row] ? top : part.top[row]; // a NaN goes on
        const float keep = expf(top - now), add = expf(part.top[row] - now);
        const float *from = part.out + row * o.v.width;
        for (int i = 0; i < o.v.width; i++) {
            out[i] = out[i] * keep + from[i] * add;
        }
        sum = sum * keep + part.sum[row] * add;
        top = now;
    }
    finish_row(o, u, row, out, top, sum);
}

void reduce(const op &o, const plan &p, const scratch &s, char *partials, int ith, int nth) {
    int64_t turn = 0;
    for (int64_t index = 0; index < p.units; index++) {
        const unit u = unit_of(o, p, index);
        for (int64_t row = 0; row < u.rows; row++, turn++) {
            if (turn % nth == ith) {
                reduce_row(o, p, partials, index, u, row, s.out);
            }
        }
    }
}

void run(const ggml_compute_params *params, const op &o, const plan &p) {
    const int ith = params->ith, nth = params->nth;
    char *base = (char *) (((uintptr_t) params->wdata + 63) & ~(uintptr_t) 63);
    const scratch s = cut_scratch(o, p.unit_rows, base + (size_t) ith * p.thread_bytes);
    char *partials = base + (size_t) nth * p.thread_bytes;
    const int64_t items = p.units * p.chunks;
    for (int64_t stream = 0; stream < o.streams; stream++) {
        s.seen[stream] = p.dealt ? tile_range{0, p.tiles} : seen_tiles(o, stream); // dealt items even out by themselves
    }

    if (p.dealt) {
        if (ith == 0) {
            ggml_threadpool_chunk_set(params->threadpool, nth);
        }
        ggml_barrier(params->threadpool);
        for (int64_t item = ith; item < items; item = ggml_threadpool_chunk_add(params->threadpool, 1)) {
            const int64_t turn = items - 1 - item; // later queries see more keys: the costly items first
            run_item(o, p, s, partials, turn / p.chunks, turn % p.chunks);
        }
    } else {
        for (int64_t item = items * ith / nth; item < items * (ith + 1) / nth; item++) {
            run_item(o, p, s, partials, item % p.units, item / p.units);
        }
    }
    if (p.chunks > 1) {
        ggml_barrier(params->threadpool);
        reduce(o, p, s, partials, ith, nth);
    }
}

} // namespace

const kernels *active_kernels() {
#if defined(__x86_64__)
    static const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                                 __builtin_cpu_supports("f16c");
    static const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                                   __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
    const char *name = turbo_simd_name();
    if (has_avx512 && strcmp(name, "avx512") == 0) {
        return &avx512_kernels;
    }
    if (has_avx2 && strcmp(name, "portable") != 0) {
        return &avx2_kernels;
    }
#endif
    return &portable_kernels;
}

} // namespace turbo_fattn

bool turbo_cpu_fattn(const struct ggml_compute_params *params, struct ggml_tensor *dst) {
    using namespace turbo_fattn;
    op o;
    const bool alone = dst->src[TURBO_RUNS_SRC] != NULL;
    if (!is_ours(dst, &o) || (params->use_ref && !alone)) {
        GGML_ASSERT(!alone && "keys that lack the centres of their runs, in a shape that is not read here");
        return false;
    }
    plan p = make_plan(o, params->nth, true);
    if (plan_bytes(p, params->nth) > params->wsize) {
        p = make_plan(o, params->nth, false); // planned for another number of threads
        if (plan_bytes(p, params->nth) > params->wsize) {
            GGML_ASSERT(!alone && "keys that lack the centres of their runs, without room to read them");
            return false;
        }
    }
    run(params, o, p);
    return true;
}

bool turbo_cpu_fattn_reads(const struct ggml_tensor *dst) {
    turbo_fattn::op o;
    return turbo_fattn::read_op(dst, &o);
}

size_t turbo_cpu_fattn_work_size(const struct ggml_tensor *dst, int n_tasks, size_t upstream_size) {
    using namespace turbo_fattn;
    op o;
    if (!is_ours(dst, &o)) {
        return upstream_size;
    }
    const size_t ours = plan_bytes(make_plan(o, n_tasks, true), n_tasks);
    return ours > upstream_size ? ours : upstream_size;
}

void turbo_cpu_fattn_enable(bool on) { turbo_fattn::enabled = on; }
