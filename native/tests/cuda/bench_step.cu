// Time of what a decoded token costs a layer: write of K and V, then attention, in a CUDA graph of all layers.
//   bench_step OUT.json
// Each pair is timed twice: attention after the write, and beside it as the library runs them.

#include "harness.h"
#include "turbo/cuda/write.h"

using namespace turbo_cuda;
using namespace harness;

static const char *format_name(int f) {
    static const char *names[] = {"turbo2", "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq", "turbo4_tcq"};
    return names[f];
}

static constexpr int head_dim = 128, n_head = 32, n_head_kv = 4, layers = 48;

static timing run(int format, int n_kv, int rows, bool beside, bool centres_of_runs) {
    const size_t head = reference::row_bytes(format, 128, head_dim), token = head * n_head_kv, tensor = token * n_kv;
    std::mt19937 rng(1);
    std::vector<uint8_t> pattern;
    random_rows(rng, format, 128, head_dim, (size_t) std::min(n_kv, 4096) * n_head_kv, pattern);
    device_buffer<uint8_t> cache(2 * tensor * layers);
    for (size_t at = 0; at < cache.count; at += pattern.size()) {
        CHECK(cudaMemcpy(cache.data + at, pattern.data(), std::min(pattern.size(), cache.count - at),
                         cudaMemcpyHostToDevice));
    }
    const int values = n_head_kv * head_dim;
    std::vector<float> numbers((size_t) rows * n_head * head_dim);
    std::normal_distribution<float> normal;
    for (float &x : numbers)
        x = normal(rng);
    device_buffer<float> q(numbers.size()), out(numbers.size());
    q.upload(numbers);
    std::vector<int64_t> newest(rows);
    for (int i = 0; i < rows; i++)
        newest[i] = n_kv - rows + i;
    device_buffer<int64_t> ids(rows);
    ids.upload(newest);
    device_buffer<uint16_t> mask((size_t) rows * n_kv);
    CHECK(cudaMemset(mask.data, 0, mask.count * 2));

    write_tensor w[2] = {};
    for (write_tensor &x : w) {
        x.source = (const char *) q.data, x.source_stride[0] = values * 4;
        x.target_stride[0] = token;
        x.ids = (const char *) ids.data, x.ids_stride[0] = 8, x.ids_ne[0] = x.ids_ne[1] = 1, x.ids_64 = 1;
        x.format = format, x.block = 128, x.row_values = values, x.ne1 = rows, x.ne2 = 1, x.n_rows = rows;
    }
    attend_args a = {};
    a.q = (const char *) q.data, a.q_stride_head = head_dim * 4, a.q_stride_row = a.q_stride_head * n_head;
    for (kv_tensor *t : {&a.k, &a.v}) {
        t->format = format, t->stride_head = head, t->stride_token = token, t->stride_stream = tensor;
    }
    a.mask = (const char *) mask.data, a.mask_stride_row = n_kv * 2;
    a.out = out.data, a.head_dim = head_dim, a.block = 128, a.n_head = n_head, a.n_head_kv = n_head_kv;
    a.n_rows = rows, a.n_streams = 1, a.n_kv = n_kv, a.scale = 1.0f / std::sqrt((float) head_dim);
    const int cells = run_length(n_kv);
    device_buffer<uint16_t> centres((size_t) layers * ((n_kv + cells - 1) / cells + 1) * values);
    CHECK(cudaMemset(centres.data, 0, centres.count * 2));
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    a.multiprocessors = device.multiProcessorCount, a.shared_limit = device.sharedMemPerBlockOptin;
    a.clusters = has_clusters(device), a.warpgroups = has_warpgroups(device);
    const attend_plan plan = attend_make_plan(a);
    device_buffer<float> scratch(attend_scratch_bytes(a, plan) / 4 + 4);
    a.scratch = scratch.data;
    if (beside) {
        for (int t = 0; t < 2; t++) {
            a.pending.source[t] = w[t].source, a.pending.source_stride[t] = w[t].source_stride[0];
            a.pending.ids[t] = (const char *) ids.data, a.pending.ids_stride[t] = 8, a.pending.ids_64[t] = 1;
        }
        a.pending.n_rows = rows, a.pending.blocks = write_blocks(w[0], &w[1]);
    }
    return time_graph(
        [&](cudaStream_t stream) {
            for (int i = 0; i < layers; i++) {
                w[0].target = (char *) cache.data + 2 * i * tensor, w[1].target = w[0].target + tensor;
                a.k.data = w[0].target, a.v.data = w[1].target;
                if (centres_of_runs) {
                    a.runs = w[0].runs = runs_of_layer(centres, i, layers, n_kv, cells, values);
                }
                CHECK(write_rows(w[0], &w[1], stream));
                CHECK(attend(a, plan, stream));
            }
        },
        15);
}

int main(int argc, char **argv) {
    FILE *json = fopen(argc > 1 ? argv[1] : "/dev/null", "w");
    fprintf(json, "[\n");
    bool first = true;
    for (int format = KV_TURBO2; format <= KV_TURBO4_TCQ; format++) {
        for (int n_kv : {256, 32768, 40960, 131072}) {
            for (int rows : {1, 4}) {
                for (bool runs : {false, true}) {
                    const timing after = run(format, n_kv, rows, false, runs),
                                 beside = run(format, n_kv, rows, true, runs);
                    printf("%-10s n_kv %6d rows %d%s: attention after the write %6.2f us a layer, beside it %6.2f\n",
                           format_name(format), n_kv, rows, runs ? " runs" : "", after.median_us / layers,
                           beside.median_us / layers);
                    fprintf(json,
                            "%s{\"type\":\"%s\",\"n_kv\":%d,\"rows\":%d,\"runs\":%d,\"after_us\":%.3f,"
                            "\"beside_us\":%.3f}",
                            first ? "" : ",\n", format_name(format), n_kv, rows, runs, after.median_us / layers,
                            beside.median_us / layers);
                    first = false;
                }
            }
        }
    }
    fprintf(json, "\n]\n");
    fclose(json);
    return 0;
}
