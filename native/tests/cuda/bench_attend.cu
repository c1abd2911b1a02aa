// Time of attention, one layer at a time inside a CUDA graph, every layer with its own memory.
//   bench_attend OUT.json

#include "harness.h"

using namespace turbo_cuda;
using namespace harness;

static bool first_row = true;

struct bench_shape {
    const char *name;
    int head_dim, n_head, n_head_kv, layers;
};

static const char *format_name(int f) {
    static const char *names[] = {"turbo2",     "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq",
                                  "turbo4_tcq", "f16",    "q8_0",   "q4_0"};
    return names[f];
}

// Repeat a random stretch over the whole buffer: speed does not depend on the values.
static void fill(device_buffer<uint8_t> &buffer, const std::vector<uint8_t> &pattern) {
    for (size_t at = 0; at < buffer.count; at += pattern.size()) {
        CHECK(cudaMemcpy(buffer.data + at, pattern.data(), std::min(pattern.size(), buffer.count - at),
                         cudaMemcpyHostToDevice));
    }
}

static void bench(FILE *json, const bench_shape &shape, int format, int format_v, int n_kv, int rows, int slices,
                  int heads_per_block, int splits, double read_rate, attend_way way = attend_way::best,
                  bool centres_of_runs = false) {
    if (way == attend_way::batch && (format >= KV_F16 || format_v >= KV_F16)) {
        return;
    }
    std::mt19937 rng(1);
    const size_t head = reference::row_bytes(format, 128, shape.head_dim), token = head * shape.n_head_kv,
                 k_bytes = token * n_kv;
    const size_t head_v = reference::row_bytes(format_v, 128, shape.head_dim), token_v = head_v * shape.n_head_kv,
                 layer = k_bytes + token_v * n_kv;
    std::vector<uint8_t> pattern;
    random_rows(rng, format, 128, shape.head_dim, 8192 * (size_t) shape.n_head_kv, pattern);
    device_buffer<uint8_t> cache(layer * shape.layers);
    fill(cache, pattern);
    std::vector<float> q((size_t) rows * shape.n_head * shape.head_dim);
    std::normal_distribution<float> normal;
    for (float &x : q)
        x = normal(rng);
    device_buffer<float> dq(q.size()), out(q.size());
    dq.upload(q);
    device_buffer<uint16_t> mask((size_t) rows * n_kv);
    CHECK(cudaMemset(mask.data, 0, mask.count * 2));

    attend_args a = {};
    a.q = (const char *) dq.data;
    a.q_stride_head = shape.head_dim * 4, a.q_stride_row = a.q_stride_head * shape.n_head;
    a.k.format = format, a.v.format = format_v;
    a.k.stride_head = head, a.v.stride_head = head_v, a.k.stride_token = token, a.v.stride_token = token_v;
    a.mask = (const char *) mask.data, a.mask_stride_row = n_kv * 2;
    a.out = out.data;
    a.head_dim = shape.head_dim, a.block = 128, a.n_head = shape.n_head, a.n_head_kv = shape.n_head_kv, a.n_rows = rows,
    a.n_streams = 1, a.n_kv = n_kv;
    a.scale = 1.0f / std::sqrt((float) shape.head_dim);
    const int cells = run_length(n_kv), values = shape.n_head_kv * shape.head_dim;
    device_buffer<uint16_t> centres((size_t) shape.layers * ((n_kv + cells - 1) / cells + 1) * values);
    CHECK(cudaMemset(centres.data, 0, centres.count * 2));
    if (centres_of_runs) { // the plan asks for them
        a.runs = runs_of_layer(centres, 0, shape.layers, n_kv, cells, values);
    }
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    a.multiprocessors = device.multiProcessorCount, a.shared_limit = device.sharedMemPerBlockOptin;
    a.clusters = has_clusters(device), a.warpgroups = has_warpgroups(device);
    attend_plan plan = attend_make_plan(a, heads_per_block, slices, way);
    if (splits)
        plan.splits = splits, plan.cluster = 0;
    device_buffer<float> scratch(attend_scratch_bytes(a, plan) / 4 + 4);
    a.scratch = scratch.data;
    const timing t = time_graph(
        [&](cudaStream_t stream) {
            for (int i = 0; i < shape.layers; i++) {
                a.k.data = (const char *) cache.data + i * layer, a.v.data = a.k.data + k_bytes;
                if (centres_of_runs) {
                    a.runs = runs_of_layer(centres, i, shape.layers, n_kv, cells, values);
                }
                CHECK(attend(a, plan, stream));
            }
        },
        15);
    const double us = t.median_us / shape.layers, floor_us = layer / read_rate * 1e6;
    printf(
        "%-14s %-10s %-10s n_kv %6d rows %2d%s%s slices %d hpb %d splits %3d: %7.2f us/layer (%.2f-%.2f), floor %6.2f, "
        "%3.0f %%\n",
        shape.name, format_name(format), format_name(format_v), n_kv, rows,
        plan.batch                ? " batch"
        : plan.wide               ? " wide"
        : plan.warps_per_head > 0 ? " team"
                                  : "",
        centres_of_runs ? " runs" : "", plan.slices, plan.heads_per_block, plan.splits, us, t.low_us / shape.layers,
        t.high_us / shape.layers, floor_us, 100 * floor_us / us);
    fprintf(json,
            "%s{\"shape\":\"%s\",\"type\":\"%s\",\"type_v\":\"%s\",\"n_kv\":%d,\"rows\":%d,\"team\":%d,\"wide\":%d,"
            "\"batch\":%d,"
            "\"runs\":%d,\"slices\":%d,\"hpb\":%d,\"splits\":%d,"
            "\"us\":%.3f,\"low_us\":%.3f,\"high_us\":%.3f,\"floor_us\":%.3f}",
            first_row ? "" : ",\n", shape.name, format_name(format), format_name(format_v), n_kv, rows,
            plan.warps_per_head > 0, plan.wide, plan.batch, centres_of_runs, plan.slices, plan.heads_per_block,
            plan.splits, us, t.low_us / shape.layers, t.high_us / shape.layers, floor_us);
    first_row = false;
}

static __global__ void read_all(const uint4 *data, size_t n, uint32_t *sink) {
    uint32_t x = 0;
    for (size_t i = blockIdx.x * (size_t) blockDim.x + threadIdx.x; i < n; i += (size_t) gridDim.x * blockDim.x) {
        const uint4 v = data[i];
        x ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (x == 0x12345678u) {
        *sink = x;
    }
}

// Bytes a second of plain 16-byte reads.
static double measure_read_rate() {
    const size_t bytes = (size_t) 4 << 30;
    device_buffer<uint8_t> data(bytes);
    data.poison();
    device_buffer<uint32_t> sink(1);
    const timing t = time_graph(
        [&](cudaStream_t stream) {
            read_all<<<132 * 16, 512, 0, stream>>>((const uint4 *) data.data, bytes / 16, sink.data);
            CHECK(cudaGetLastError());
        },
        9);
    return bytes / (t.median_us * 1e-6);
}

// Draft batches: every warp for itself, teams, and warpgroup products of halves and of bytes.
static void bench_rows(FILE *json, const bench_shape &shape, double rate, int only) {
    for (int f : {KV_TURBO3, KV_TURBO4, KV_TURBO3_TCQ, KV_TURBO4_TCQ, KV_Q8_0}) {
        for (int n_kv : {131072, 32768, 8192, 2048, 512}) {
            if (only > 0 && n_kv != only) {
                continue;
            }
            for (attend_way way : {attend_way::own, attend_way::wide, attend_way::batch}) {
                bench(json, shape, f, f, n_kv, 2, 0, 0, 0, rate, way);
            }
            for (int rows : {4, 8}) {
                for (attend_way way : {attend_way::own, attend_way::team, attend_way::wide, attend_way::batch}) {
                    bench(json, shape, f, f, n_kv, rows, 0, 0, 0, rate, way);
                }
            }
        }
    }
}

int main(int argc, char **argv) {
    FILE *json = fopen(argc > 1 ? argv[1] : "/dev/null", "w");
    fprintf(json, "[\n");
    const double rate = measure_read_rate();
    printf("plain reads: %.3f TB/s\n", rate * 1e-12);
    const bench_shape qwen = {"qwen3-30b-a3b", 128, 32, 4, 48};
    if (argc > 2 && strcmp(argv[2], "rows") == 0) { // behind one length of the cache, or several
        bench_rows(json, qwen, rate, argc > 3 ? atoi(argv[3]) : 0);
        fprintf(json, "\n]\n");
        fclose(json);
        return 0;
    }
    if (argc > 2 && strcmp(argv[2], "runs") == 0) { // with and without centres of runs
        for (int f : {KV_TURBO3, KV_TURBO3_TCQ}) {
            for (int n_kv : {131072, 32768, 8192, 256}) {
                for (bool runs : {false, true}) {
                    for (int rows : {1, 2, 4, 8}) {
                        bench(json, qwen, f, f, n_kv, rows, 0, 0, 0, rate, attend_way::best, runs);
                    }
                }
            }
        }
        fprintf(json, "\n]\n");
        fclose(json);
        return 0;
    }
    if (argc > 2) { // one configuration, for a profiler: n_kv, rows, format, slices
        const int format = argc > 4 ? atoi(argv[4]) : KV_TURBO3;
        bench(json, qwen, format, format, atoi(argv[2]), argc > 3 ? atoi(argv[3]) : 1, argc > 5 ? atoi(argv[5]) : 0, 0,
              0, rate);
        return 0;
    }
    for (int n_kv : {131072, 32768, 8192, 4096, 1024, 256}) {
        for (int slices : {1, 4}) {
            bench(json, qwen, KV_TURBO3, KV_TURBO3, n_kv, 1, slices, 0, 0, rate);
        }
    }
    for (int n_kv : {131072, 32768, 256}) {
        bench(json, qwen, KV_Q8_0, KV_TURBO3, n_kv, 1, 0, 0, 0, rate);
        bench(json, qwen, KV_F16, KV_TURBO3, n_kv, 1, 0, 0, 0, rate);
    }
    const bench_shape gemma_window = {"gemma4-swa", 256, 16, 8, 25}, gemma_global = {"gemma4-global", 512, 16, 2, 5};
    for (int f : {KV_TURBO3, KV_TURBO3_TCQ}) {
        bench(json, gemma_window, f, f, 1024, 1, 0, 0, 0, rate);
        for (int n_kv : {256, 32768, 131072}) {
            bench(json, gemma_global, f, f, n_kv, 1, 0, 0, 0, rate);
        }
    }
    for (int f = KV_TURBO2; f <= KV_Q4_0; f++) {
        if (f == KV_F16) {
            continue;
        }
        for (int n_kv : {131072, 32768, 256}) {
            bench(json, qwen, f, f, n_kv, 1, 0, 0, 0, rate);
        }
    }
    bench_rows(json, qwen, rate, 0);
    fprintf(json, "\n]\n");
    fclose(json);
    return 0;
}
