// Encoding and decoding on the GPU against the CPU codecs. Exit 1 if anything is off.
//   keys less the centres of runs: written as if subtracted before, lifted as if added afterwards
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

// A block whose rotated values are a few large ones in a row, nothing else: what a search can represent worst.
static void make_spikes(std::mt19937 &rng, float *x, int block) {
    std::fill_n(x, block, 0.0f);
    const int count = 1 + (int) (rng() % 8), first = (int) (rng() % (block - count + 1));
    for (int i = first; i < first + count; i++) {
        x[i] = rng() & 1 ? 1.0f : -1.0f;
    }
    reference::hadamard(x, block);
    for (int i = 0; i < block; i++) {
        x[i] *= (float) reference::sign_of(block, i);
    }
}

// Rows with every sort of value a cache meets: Gaussian, outlier channels, zeros, tiny and huge rows, non-finite ones;
// and spikes.
static std::vector<float> make_rows(std::mt19937 &rng, int rows, int values, int block) {
    std::vector<float> x((size_t) rows * values);
    std::normal_distribution<float> normal;
    for (int r = 0; r < rows; r++) {
        const float gain = r % 11 == 3 ? 1e-9f : r % 11 == 5 ? 1e6f : std::exp(normal(rng));
        for (int i = 0; i < values; i++) {
            x[(size_t) r * values + i] = normal(rng) * gain * (i % 37 == 5 && r % 2 ? 20.0f : 1.0f);
        }
        if (r % 17 == 9)
            std::fill_n(&x[(size_t) r * values], values, 0.0f);
        for (int i = 0; r % 31 == 17 && i < values; i += block) {
            make_spikes(rng, &x[(size_t) r * values + i], block);
        }
        if (r % 29 == 13)
            x[(size_t) r * values + 7] = r & 1 ? INFINITY : NAN;
    }
    return x;
}

static int check_format(int format, int block, int rows, std::mt19937 &rng) {
    const turbo_type_desc *desc = desc_of(format, block);
    const int values = 512, ids_step = 2;
    const int row_bytes = values / block * desc->bytes;
    const std::vector<float> x = make_rows(rng, rows, values, block);
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

// Two streams of `cells` cells, of which all but three are written, in no order, and all are lifted.
static int check_runs(int format, int block, int cells, int run, std::mt19937 &rng) {
    const int heads = 4, head_dim = 128, values = heads * head_dim, rows = 2 * cells - 3;
    const int head_bytes = reference::row_bytes(format, block, head_dim), row_bytes = head_bytes * heads;
    const std::vector<float> x = make_rows(rng, rows, values, block);
    const std::vector<uint16_t> centres = random_runs(rng, cells, run, values);
    std::vector<int64_t> ids(2 * cells);
    for (int i = 0; i < 2 * cells; i++)
        ids[i] = i;
    std::shuffle(ids.begin(), ids.end(), rng);
    ids.resize(rows);
    device_buffer<float> dx(x.size()), less(x.size()), back((size_t) 2 * cells * values);
    device_buffer<uint16_t> dcentres(centres.size()), lifted(back.count), added(back.count);
    device_buffer<int64_t> dids(rows);
    device_buffer<uint8_t> cache((size_t) 2 * cells * row_bytes), other(cache.count);
    dx.upload(x), dcentres.upload(centres), dids.upload(ids);
    cache.upload(std::vector<uint8_t>(cache.count)), other.upload(std::vector<uint8_t>(cache.count));
    less.poison(), lifted.poison(), added.poison();

    write_tensor w = {};
    w.source = (const char *) dx.data, w.source_stride[0] = values * 4;
    w.target = (char *) cache.data, w.target_stride[0] = row_bytes;
    w.ids = (const char *) dids.data, w.ids_stride[0] = 8, w.ids_ne[0] = w.ids_ne[1] = 1, w.ids_64 = 1;
    w.format = format, w.block = block, w.row_values = values, w.ne1 = rows, w.ne2 = 1, w.n_rows = rows;
    w.runs = runs_at(dcentres, cells, run, values, false);
    CHECK(write_rows(w, nullptr, 0));
    const run_change change = {dx.data, less.data, values, values, dids.data, values, rows, -1.0f, w.runs};
    CHECK(change_by_runs(change, 0)); // the subtraction by itself
    write_tensor apart = w;
    apart.source = (const char *) less.data, apart.target = (char *) other.data, apart.runs = {};
    CHECK(write_rows(apart, nullptr, 0));
    int bad = cache.download() != other.download();
    const std::vector<float> got_less = less.download();
    const auto centre = [&](int cell, int value) {
        return reference::half_to_float(centres[(size_t) (cell / run) * values + value]);
    };
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < values; j++) {
            const size_t at = (size_t) i * values + j;
            const float want = x[at] - centre(ids[i] % cells, j);
            bad += memcmp(&want, &got_less[at], 4) != 0 && !std::isnan(want);
        }
    }
    if (format < KV_F16) { // [head_dim, cells, heads, streams], as attention sees a cache
        read_tensor r = {};
        r.source = w.target, r.source_stride[0] = row_bytes, r.source_stride[1] = head_bytes;
        r.source_stride[2] = (int64_t) row_bytes * cells;
        r.format = format, r.block = block, r.row_values = head_dim, r.ne1 = cells, r.ne2 = heads;
        r.n_rows = 2 * cells * heads;
        const auto to = [&](void *target, int bytes) {
            r.target = (char *) target, r.target_half = bytes == 2;
            r.target_stride[0] = head_dim * bytes, r.target_stride[1] = r.target_stride[0] * cells;
            r.target_stride[2] = r.target_stride[1] * heads;
        };
        to(back.data, 4);
        CHECK(read_rows(r, 0));
        to(added.data, 2);
        CHECK(lift_rows(r, 0));
        r.runs = w.runs;
        CHECK(add_runs(r, 0));
        to(lifted.data, 2);
        CHECK(lift_rows(r, 0));
        const std::vector<float> plain = back.download();
        const std::vector<uint16_t> got[2] = {lifted.download(), added.download()};
        for (size_t i = 0; i < plain.size(); i++) {
            const int cell = i / head_dim % cells, head = i / head_dim / cells % heads;
            const float c = centre(cell, head * head_dim + i % head_dim), want = plain[i] + c;
            for (const std::vector<uint16_t> &half : got) {
                const float y = reference::half_to_float(half[i]);
                const bool near = std::fabs(y - want) <= 1e-3f * (std::fabs(plain[i]) + std::fabs(c)) + 1e-7f;
                bad += std::isnan(want) ? !std::isnan(y) : std::fabs(plain[i]) < 60000.0f && !near;
            }
        }
    }
    CHECK(cudaDeviceSynchronize());
    printf("%s format %d block %d, runs of %d in %d cells: %d off\n", bad ? "FAIL" : "ok  ", format, block, run, cells,
           bad);
    return bad != 0;
}

// Two tensors written in one call hold the same bytes as each written by itself.
static int check_pair(const int (&formats)[2], const int (&blocks)[2], int rows, std::mt19937 &rng) {
    const int values = 512;
    write_tensor w[2] = {};
    device_buffer<float> x((size_t) rows * values * 2);
    const size_t each = (size_t) rows * 2 * values; // bytes: more than any format takes
    device_buffer<uint8_t> together(2 * each), alone(2 * each);
    std::vector<float> source;
    for (int i = 0; i < 2; i++) {
        const std::vector<float> part = make_rows(rng, rows, values, blocks[i]);
        source.insert(source.end(), part.begin(), part.end());
        w[i].source = (const char *) (x.data + (size_t) i * rows * values), w[i].source_stride[0] = values * 4;
        w[i].target_stride[0] = reference::row_bytes(formats[i], blocks[i], values);
        w[i].format = formats[i], w[i].block = blocks[i], w[i].row_values = values, w[i].ne1 = rows, w[i].ne2 = 1,
        w[i].n_rows = rows;
    }
    x.upload(source), together.poison(), alone.poison();
    for (const device_buffer<uint8_t> *to : {&together, &alone}) {
        for (int i = 0; i < 2; i++) {
            w[i].target = (char *) to->data + i * each;
        }
        CHECK(write_rows(w[0], to == &together ? &w[1] : nullptr, 0));
        if (to == &alone) {
            CHECK(write_rows(w[1], nullptr, 0));
        }
    }
    CHECK(cudaDeviceSynchronize());
    const bool ok = together.download() == alone.download();
    printf("%s formats %d and %d, blocks of %d and %d, in one call and in two\n", ok ? "ok  " : "FAIL", formats[0],
           formats[1], blocks[0], blocks[1]);
    return !ok;
}

int main(int argc, char **argv) {
    std::mt19937 rng(std::random_device{}());
    const bool small = argc > 1;
    int failed = 0;
    for (int format = KV_TURBO2; format <= KV_TURBO4_TCQ; format++) {
        for (int block : {128, 64}) {
            for (int rows : {small ? 5 : 101, small ? 257 : 1003}) { // few: a thread block a block; many: eight
                if (!small || format >= KV_TURBO2_TCQ || rows < 100) {
                    failed += check_format(format, block, rows, rng);
                }
            }
            failed += check_runs(format, block, small ? 80 : 500, block == 128 ? 192 : 64, rng);
        }
    }
    for (int k = KV_TURBO2_TCQ; k <= (small ? KV_TURBO2_TCQ : KV_TURBO4_TCQ); k++) {
        failed += check_pair({k, KV_Q8_0}, {128, 128}, small ? 257 : 515, rng);
        for (int v = small ? k + 1 : KV_TURBO2; v <= (small ? k : KV_TURBO4_TCQ); v++) {
            failed += check_pair({k, v}, {128, 128}, 515, rng);
            failed += check_pair({k, v}, {64, 128}, 515, rng);
        }
    }
    failed += check_runs(KV_Q8_0, 128, argc > 1 ? 80 : 500, 64, rng);
    return failed != 0;
}
