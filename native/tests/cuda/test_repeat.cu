// The same input gives the same bits, run after run: what a race, or memory nobody wrote, would change.

#include <cmath>
#include <cstring>
#include <random>

#include "harness.h"
#include "turbo/cuda/attend.h"

using namespace turbo_cuda;
using namespace harness;

static constexpr int repeats = 300;

struct repeat_case {
    int format_k, format_v, block, head_dim, n_head, n_head_kv, n_rows, n_streams, n_kv;
    int run; // cells that share a centre, or 0
};

// Which partial results (stream, KV head, column, split of the cache) of two runs differ, and by how much.
static void compare_partials(const attend_args &a, const attend_plan &plan, const std::vector<float> &x,
                             const std::vector<float> &y) {
    const int columns = a.n_head / a.n_head_kv * a.n_rows;
    const size_t states = (size_t) a.n_streams * a.n_head_kv * columns * plan.splits;
    int shown = 0, differing = 0;
    for (size_t at = 0; at < states && plan.splits > 1 && plan.cluster == 0; at++) {
        int values = 0, first = -1;
        float most = 0.0f;
        for (int i = 0; i < a.head_dim; i++) {
            const float u = x[at * a.head_dim + i], v = y[at * a.head_dim + i];
            if (memcmp(&u, &v, sizeof u) != 0) {
                first = values++ == 0 ? i : first;
                most = std::fmax(most, std::fabs(u - v));
            }
        }
        const float *sx = &x[states * a.head_dim + 2 * at], *sy = &y[states * a.head_dim + 2 * at];
        if (values == 0 && memcmp(sx, sy, 2 * sizeof *sx) == 0) {
            continue;
        }
        if (differing++, shown++ < 12) {
            const size_t column = at / plan.splits;
            printf("    stream %zu head %zu column %zu split %zu: %d values from %d on, by %g; maximum %.9g %.9g sum "
                   "%.9g %.9g\n",
                   column / columns / a.n_head_kv, column / columns % a.n_head_kv, column % columns, at % plan.splits,
                   values, first, most, sx[0], sy[0], sx[1], sy[1]);
        }
    }
    printf("    %d of %zu partial results differ; %d splits, %d heads a block, %d slices\n", differing, states,
           plan.splits, plan.heads_per_block, plan.slices);
}

// Runs whose output differs from the first one's, or is not finite.
static int run_case(const repeat_case &c, bool masked, attend_way way, std::mt19937 &rng,
                    const cudaDeviceProp &device) {
    std::vector<uint8_t> k, v;
    random_rows(rng, c.format_k, c.block, c.head_dim, (size_t) c.n_streams * c.n_kv * c.n_head_kv, k);
    random_rows(rng, c.format_v, c.block, c.head_dim, (size_t) c.n_streams * c.n_kv * c.n_head_kv, v);
    std::vector<float> q((size_t) c.n_streams * c.n_rows * c.n_head * c.head_dim);
    std::normal_distribution<float> normal;
    for (float &x : q)
        x = 1.5f * normal(rng);
    std::vector<uint16_t> mask((size_t) c.n_streams * c.n_rows * c.n_kv);
    for (size_t i = 0; i < mask.size(); i++)
        mask[i] = i % c.n_kv > 0 && rng() % 13 == 0 ? 0xfc00 : 0;
    device_buffer<uint8_t> dk(k.size() + 64), dv(v.size() + 64);
    device_buffer<float> dq(q.size()), out(q.size());
    device_buffer<uint16_t> dmask(mask.size());
    dk.upload(k), dv.upload(v), dq.upload(q), dmask.upload(mask);

    attend_args a = {};
    a.q = (const char *) dq.data;
    a.q_stride_head = c.head_dim * 4, a.q_stride_row = a.q_stride_head * c.n_head;
    a.q_stride_stream = a.q_stride_row * c.n_rows;
    a.k = packed_rows(dk, c.format_k, c.block, c.head_dim, c.n_head_kv, c.n_kv);
    a.v = packed_rows(dv, c.format_v, c.block, c.head_dim, c.n_head_kv, c.n_kv);
    const int values = c.n_head_kv * c.head_dim;
    device_buffer<uint16_t> centres(c.run > 0 ? ((c.n_kv + c.run - 1) / c.run + 1) * values : 0);
    if (c.run > 0) {
        centres.upload(random_runs(rng, c.n_kv, c.run, values));
        a.runs = runs_at(centres, c.n_kv, c.run, values, false);
    }
    a.mask = masked ? (const char *) dmask.data : nullptr;
    a.mask_stride_row = c.n_kv * 2, a.mask_stride_stream = a.mask_stride_row * c.n_rows;
    a.out = out.data;
    a.head_dim = c.head_dim, a.block = c.block, a.n_head = c.n_head, a.n_head_kv = c.n_head_kv;
    a.n_rows = c.n_rows, a.n_streams = c.n_streams, a.n_kv = c.n_kv;
    a.scale = 1.0f / std::sqrt((float) c.head_dim);
    a.multiprocessors = device.multiProcessorCount, a.shared_limit = device.sharedMemPerBlockOptin;
    a.clusters = has_clusters(device), a.warpgroups = has_warpgroups(device);
    const attend_plan plan = attend_make_plan(a, 0, 0, way);
    device_buffer<float> scratch(attend_scratch_bytes(a, plan) / 4 + 4);
    a.scratch = scratch.data;
    std::vector<float> first, first_partials;
    int differing = 0;
    for (int i = 0; i < repeats; i++) {
        constexpr uint32_t patterns[] = {0xffffffffu, 0u, 0x7bff7bffu}; // NaN, zero, the largest halves
        out.poison(), scratch.poison();
        if (i % 2 > 0) {
            poison_shared(device, patterns[i / 2 % 3]);
        }
        CHECK(attend(a, plan, 0));
        const std::vector<float> got = out.download();
        if (i == 0) {
            first = got, first_partials = scratch.download();
        }
        bool finite = true;
        for (float x : got)
            finite &= std::isfinite(x);
        if (!finite || memcmp(got.data(), first.data(), got.size() * sizeof(float)) != 0) {
            if (differing++ == 0) {
                printf("    run %d, %s\n", i, finite ? "finite" : "not finite");
                compare_partials(a, plan, first_partials, scratch.download());
            }
        }
    }
    return differing;
}

int main(int argc, char **argv) {
    setvbuf(stdout, nullptr, _IOLBF, 0); // what is found is shown even if the test is ended
    case_share share(argc > 1 ? argv[1] : nullptr);
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    std::mt19937 rng(std::random_device{}());
    std::vector<repeat_case> cases;
    for (int f = KV_TURBO2; f <= KV_Q4_0; f++) {
        const int v = f == KV_Q4_0 ? (int) KV_TURBO2 : f + 1; // pairs of unlike width, and of like format
        for (int rows : {1, 3, 8}) {
            cases.push_back({f, v, 64, 64, 9, 3, rows, 2, 2500, 64});
            cases.push_back({f, v, 128, 128, 12, 2, rows, 1, 4001, 192});
            cases.push_back({f, f, 128, 128, 32, 4, rows, 1, 9000, 128});
            cases.push_back({f, f, 128, 128, 32, 4, rows, 1, 250, rows > 1 ? 64 : 0});
            cases.push_back({f, v, 128, 256, 16, 4, rows, 1, 9000, rows > 1 ? 256 : 0});
            cases.push_back({f, v, 128, 512, 16, 2, rows, 1, 2500, 64});
        }
    }
    int failed = 0, total = 0;
    for (const repeat_case &c : cases) {
        for (int kind = 0; kind < 8; kind++) {
            if (!share.next_is_mine()) {
                continue;
            }
            const bool masked = kind & 1;
            const attend_way way = kind < 2   ? attend_way::own
                                   : kind < 4 ? attend_way::team
                                   : kind < 6 ? attend_way::wide
                                              : attend_way::batch;
            if (kind > 1 && (c.head_dim != 128 || c.n_head / c.n_head_kv * c.n_rows <= 16)) {
                continue;
            }
            if (way == attend_way::batch && (c.format_k >= KV_F16 || c.format_v >= KV_F16)) {
                continue;
            }
            const int differing = run_case(c, masked, way, rng, device);
            total++, failed += differing > 0;
            if (differing > 0) {
                printf("FAIL formats %d/%d D %d heads %d/%d rows %d streams %d n_kv %d mask %d way %d: %d of %d runs "
                       "differ\n",
                       c.format_k, c.format_v, c.head_dim, c.n_head, c.n_head_kv, c.n_rows, c.n_streams, c.n_kv, masked,
                       (int) way, differing, repeats);
            }
        }
    }
    printf("repeat: %d cases of %d runs, %d failed\n", total, repeats, failed);
    return failed != 0;
}
