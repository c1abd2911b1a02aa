// Encoding and decoding on the GPU against the CPU codecs. Exit 1 if anything is off.
//   blocks written by the GPU: squared error within 0.1 % of the CPU's; decoded bit-equal by both
//   test_codec [small]     small: few rows, for compute-sanitizer

#include "harness.h"

#include "../../turbo/cpu/codec.h"
#include "../../turbo/cuda/write.h"

using namespace turbo_cuda;
using namespace harness;

static const turbo_type_desc *desc_of(int format, int block) {
    const int first[] = {TURBO_INDEX_TURBO2,     TURBO_INDEX_TURBO3,     TURBO_INDEX_TURBO4,
                         TURBO_INDEX_TURBO2_TCQ, TURBO_INDEX_TURBO3_TCQ, TURBO_INDEX_TURBO4_TCQ};
    return turbo_desc(first[format] + (block == 64));
}

// Rows with every sort of value a cache meets: Gaussian, outlier channels, zeros, tiny and huge rows, non-finite ones.
static std::vector<float> make_rows(std::mt19937 &rng, int rows, int values) {
    std::vector<float> x((size_t) rows * values);
    std::normal_distribution<float> normal;
    for (int r = 0; r < rows; r++) {
        const float gain = r % 11 == 3 ? 1e-9f : r % 11 == 5 ? 1e6f : std::exp(normal(rng));
        for (int i = 0; i < values; i++) {
            x[(size_t) r * values + i] = normal(rng) * gain * (i % 37 == 5 && r % 2 ? 20.0f : 1.0f);
        }
        if (r % 17 == 9)
            std::fill_n(&x[(size_t) r * values], values, 0.0f);
        if (r % 29 == 13)
            x[(size_t) r * values + 7] = r & 1 ? INFINITY : NAN;
    }
    return x;
}

static int check_format(int format, int block, int rows, std::mt19937 &rng) {
    const turbo_type_desc *desc = desc_of(format, block);
    const int values = 512, ids_step = 2;
    const int row_bytes = values / block * desc->bytes;
    const std::vector<float> x = make_rows(rng, rows, values);
    std::vector<int64_t> ids(rows);
    for (int i = 0; i < rows; i++)
        ids[i] = (int64_t) (rows - 1 - i) * ids_step;
    device_buffer<float> dx(x.size()), back(x.size());
    device_buffer<int64_t> dids(rows);
    device_buffer<uint8_t> cache((size_t) rows * ids_step * row_bytes);
    dx.upload(x), dids.upload(ids), cache.poison(), back.poison();

    write_tensor w = {};
    w.source = (const char *) dx.data, w.source_stride[0] = values * 4;
    w.target = (char *) cache.data, w.target_stride[0] = row_bytes;
    w.ids = (const char *) dids.data, w.ids_stride[0] = 8, w.ids_ne[0] = w.ids_ne[1] = 1, w.ids_64 = 1;
    w.format = format, w.block = block, w.row_values = values, w.ne1 = rows, w.ne2 = 1, w.n_rows = rows;
    CHECK(write_rows(w, nullptr, 0));
    read_tensor r = {};
    r.source = w.target, r.source_stride[0] = row_bytes * ids_step;
    r.target = (char *) back.data, r.target_stride[0] = values * 4;
    r.format = format, r.block = block, r.row_values = values, r.ne1 = rows, r.ne2 = 1, r.n_rows = rows;
    CHECK(read_rows(r, 0));
    read_tensor h = r; // the same rows as f16
    device_buffer<uint16_t> lifted(x.size());
    lifted.poison();
    h.target = (char *) lifted.data, h.target_stride[0] = values * 2, h.target_half = 1;
    CHECK(lift_rows(h, 0));
    CHECK(cudaDeviceSynchronize());
    const std::vector<uint16_t> got_half = lifted.download();
    const std::vector<uint8_t> got = cache.download();
    const std::vector<float> got_back = back.download();

    int bad = 0, equal_rows = 0;
    double gpu_error = 0, cpu_error = 0, blocks = 0;
    std::vector<uint8_t> cpu_row(row_bytes);
    std::vector<float> a(values), b(values);
    for (int i = 0; i < rows; i++) {
        const uint8_t *gpu_row = &got[(size_t) ids[i] * row_bytes];
        const float *source = &x[(size_t) i * values];
        turbo_encode(desc, source, cpu_row.data(), values);
        turbo_decode(desc, gpu_row, a.data(), values);
        turbo_decode(desc, cpu_row.data(), b.data(), values);
        equal_rows += memcmp(gpu_row, cpu_row.data(), row_bytes) == 0;
        const float *direct = &got_back[(size_t) (rows - 1 - i) * values];
        for (int j = 0; j < values; j++) {
            const bool same = memcmp(&a[j], &direct[j], 4) == 0 || (std::isnan(a[j]) && std::isnan(direct[j])) ||
                              (a[j] == 0 && direct[j] == 0);
            const float half = reference::half_to_float(got_half[(size_t) (rows - 1 - i) * values + j]);
            const bool near = std::isnan(direct[j])
                                  ? std::isnan(half)
                                  : std::fabs(direct[j]) > 65504.0f ||
                                        std::fabs(half - direct[j]) <= 5e-4f * std::fabs(direct[j]) + 3e-8f;
            bad += !near || !same || std::isnan(a[j]) != std::isnan(b[j]);
        }
        for (int at = 0; at < values; at += block) {
            double energy = 0, ea = 0, eb = 0;
            for (int j = at; j < at + block; j++) {
                energy += (double) source[j] * source[j];
                ea += ((double) a[j] - source[j]) * ((double) a[j] - source[j]);
                eb += ((double) b[j] - source[j]) * ((double) b[j] - source[j]);
            }
            if (std::isfinite(energy) && energy > 1e-3 && energy < 1e8 && std::isfinite(ea)) {
                gpu_error += ea / energy;
                cpu_error += eb / energy;
                blocks++;
            }
        }
    }
    const double ratio = gpu_error / cpu_error;
    const bool ok = bad == 0 && ratio < 1.001 && ratio > 0.99;
    printf("%s %-14s relative error %.6f, GPU / CPU %.6f, rows equal %d of %d, decode mismatches %d\n",
           ok ? "ok  " : "FAIL", desc->name, gpu_error / blocks, ratio, equal_rows, rows, bad);
    return !ok;
}

int main(int argc, char **argv) {
    std::mt19937 rng(std::random_device{}());
    int failed = 0;
    for (int format = KV_TURBO2; format <= KV_TURBO4_TCQ; format++) {
        for (int block : {128, 64}) {
            failed += check_format(format, block, argc > 1 ? 5 : 700, rng);
        }
    }
    return failed != 0;
}
