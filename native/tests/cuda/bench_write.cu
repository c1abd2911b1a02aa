// Time of the cache write: K and V of a layer in one launch, layers one after the other inside a CUDA graph.
//   bench_write [OUT.json]

#include "harness.h"

#include "../../turbo/cuda/write.h"

using namespace turbo_cuda;
using namespace harness;

// One tensor of 32,768 tokens x 4 heads of 128 to f16.
static void bench_lift(FILE *json) {
    const int tokens = 32768, values = 512, copies = 8;
    for (int format = KV_TURBO2; format <= KV_TURBO4_TCQ; format++) {
        const int row_bytes = reference::row_bytes(format, 128, values);
        std::mt19937 rng(1);
        std::vector<uint8_t> rows;
        random_rows(rng, format, 128, values, tokens, rows);
        device_buffer<uint8_t> cache(rows.size() + 64);
        device_buffer<uint16_t> target((size_t) tokens * values * copies);
        cache.upload(rows);
        read_tensor r = {};
        r.source = (const char *) cache.data, r.source_stride[0] = row_bytes, r.target_stride[0] = values * 2,
        r.target_half = 1;
        r.format = format, r.block = 128, r.row_values = values, r.ne1 = tokens, r.ne2 = 1, r.n_rows = tokens;
        const timing t = time_graph(
            [&](cudaStream_t stream) {
                for (int i = 0; i < copies; i++) {
                    r.target = (char *) (target.data + (size_t) i * tokens * values);
                    CHECK(lift_rows(r, stream));
                }
            },
            9);
        printf("lift format %d: %.2f us for 32768 tokens x 4 heads x 128\n", format, t.median_us / copies);
        fprintf(json, ",\n{\"lift\":%d,\"us\":%.3f}", format, t.median_us / copies);
    }
}

int main(int argc, char **argv) {
    FILE *json = fopen(argc > 1 ? argv[1] : "/dev/null", "w");
    bool first_row = true;
    fprintf(json, "[\n");
    const int layers = 48, values = 512;
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (int rows : {1, 8, 128, 512}) {
        std::vector<float> x((size_t) rows * values * 2);
        for (float &v : x)
            v = normal(rng);
        std::vector<int64_t> ids(rows);
        for (int i = 0; i < rows; i++)
            ids[i] = i;
        device_buffer<float> dx(x.size());
        device_buffer<int64_t> dids(rows);
        device_buffer<uint8_t> cache((size_t) rows * 2 * 4 * 66 * layers);
        dx.upload(x), dids.upload(ids);
        for (int format = KV_TURBO2; format <= KV_TURBO4_TCQ; format++) {
            const int row_bytes = reference::row_bytes(format, 128, values);
            write_tensor w[2] = {};
            for (int i = 0; i < 2; i++) {
                w[i].source = (const char *) (dx.data + (size_t) i * rows * values), w[i].source_stride[0] = values * 4;
                w[i].target_stride[0] = row_bytes;
                w[i].ids = (const char *) dids.data, w[i].ids_stride[0] = 8, w[i].ids_ne[0] = w[i].ids_ne[1] = 1,
                w[i].ids_64 = 1;
                w[i].format = format, w[i].block = 128, w[i].row_values = values, w[i].ne1 = rows, w[i].ne2 = 1,
                w[i].n_rows = rows;
            }
            const timing t = time_graph(
                [&](cudaStream_t stream) {
                    for (int i = 0; i < layers; i++) {
                        w[0].target = (char *) cache.data + (size_t) i * rows * row_bytes * 2,
                        w[1].target = w[0].target + (size_t) rows * row_bytes;
                        CHECK(write_rows(w[0], &w[1], stream));
                    }
                },
                15);
            printf("write format %d rows %3d: %.2f us/layer (%.2f-%.2f)\n", format, rows, t.median_us / layers,
                   t.low_us / layers, t.high_us / layers);
            fprintf(json, "%s{\"format\":%d,\"rows\":%d,\"us\":%.3f,\"low_us\":%.3f,\"high_us\":%.3f}",
                    first_row ? "" : ",\n", format, rows, t.median_us / layers, t.low_us / layers, t.high_us / layers);
            first_row = false;
        }
    }
    bench_lift(json);
    fprintf(json, "\n]\n");
    fclose(json);
    return 0;
}
