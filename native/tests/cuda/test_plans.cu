// Every plan can be launched: shared memory suffices on devices with 99, 163 and 227 KB of it, for all pairs of formats
// and many shapes, and what is allocated before a write is known suffices afterwards. Nothing is launched and no GPU is
// needed: linked with --wrap for the two calls below.

#include "harness.h"

using namespace turbo_cuda;

extern "C" cudaError_t __wrap_cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) {
    return cudaSuccess;
}
extern "C" cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *, void **) {
    return cudaSuccess;
}

static const char somewhere[16] = {}; // never read

static kv_tensor packed(int format, int block, int head_dim, int heads, int n_kv) {
    kv_tensor x = {somewhere, format, 0, reference::row_bytes(format, block, head_dim), 0};
    x.stride_token = x.stride_head * heads, x.stride_stream = x.stride_token * n_kv;
    return x;
}

struct plan_counts {
    int64_t plans = 0, refused = 0, larger = 0;

    void check(const attend_args &args, const attend_args &before_write) {
        for (attend_way way : {attend_way::best, attend_way::own, attend_way::team}) {
            const attend_plan plan = attend_make_plan(args, 0, 0, way),
                              known = attend_make_plan(before_write, 0, 0, way);
            const bool fits = attend(args, plan, 0) == cudaSuccess,
                       enough = attend_scratch_bytes(args, plan) <= attend_scratch_bytes(before_write, known);
            if ((!fits && refused == 0) || (!enough && larger == 0)) {
                printf("FAIL %zu KB, formats %d/%d D %d heads %d/%d rows %d streams %d n_kv %d runs of %d, %d being "
                       "written, way %d\n",
                       args.shared_limit / 1024, args.k.format, args.v.format, args.head_dim, args.n_head,
                       args.n_head_kv, args.n_rows, args.n_streams, args.n_kv, args.runs.cells_each,
                       args.pending.n_rows, (int) way);
            }
            plans++, refused += !fits, larger += !enough;
        }
    }
};

// All ways of keeping keys and of writing beside the attention.
static void check_shape(plan_counts &counts, attend_args a) {
    const int each = a.n_kv <= 8192 ? 64 : a.n_kv <= 16384 ? 128 : a.n_kv <= 24576 ? 192 : 256;
    for (int cells : {-1, 0, each}) { // no centres, one for all cells, runs
        if (cells >= 0 && a.k.format == KV_F16) {
            continue;
        }
        a.runs = {cells < 0 ? nullptr : somewhere, 0, 4096, cells < 0 ? 0 : cells, a.n_kv};
        counts.check(a, a);
        if (a.n_streams == 1) {
            attend_args writing = a;
            writing.pending.n_rows = a.n_rows, writing.pending.blocks = 8, writing.inputs_ready = true;
            counts.check(writing, a);
        }
    }
}

static void check_formats(plan_counts &counts, attend_args a, int k, int v) {
    for (int heads : {1, 2, 3, 4, 5, 8, 16}) {
        for (int gqa : {1, 3, 4, 8, 16}) {
            for (int n_kv : {200, 2100, 9000, 40000, 131072}) {
                a.n_head_kv = heads, a.n_head = heads * gqa, a.n_kv = n_kv;
                a.k = packed(k, a.block, a.head_dim, heads, n_kv), a.v = packed(v, a.block, a.head_dim, heads, n_kv);
                for (int rows : {1, 2, 4, 8, 16}) {
                    for (int streams : {1, 2, 8, 40}) {
                        if ((int64_t) n_kv * streams <= 400000) {
                            a.n_rows = rows, a.n_streams = streams;
                            check_shape(counts, a);
                        }
                    }
                }
            }
        }
    }
}

int main() {
    plan_counts counts;
    for (size_t limit : {99, 163, 227}) {
        attend_args a = {};
        a.q = somewhere, a.out = a.scratch = (float *) somewhere, a.scale = 1.0f;
        a.shared_limit = limit * 1024, a.clusters = a.warpgroups = limit == 227;
        a.multiprocessors = limit == 227 ? 132 : 84;
        for (int head_dim : {64, 128, 256, 512}) {
            a.head_dim = head_dim, a.block = head_dim % 128 ? 64 : 128;
            for (int k = 0; k <= KV_Q4_0; k++) {
                for (int v = 0; v <= KV_Q4_0; v++) {
                    check_formats(counts, a, k, v);
                }
            }
        }
    }
    printf("plans: %lld, %lld refused, %lld need more memory than was allocated\n", (long long) counts.plans,
           (long long) counts.refused, (long long) counts.larger);
    return counts.refused + counts.larger != 0;
}
