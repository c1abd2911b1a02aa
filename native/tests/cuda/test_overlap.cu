// Attention that starts beside the write of the newest tokens, against a float64 reference and many times over: every
// run must give the same bytes, in the output and in the cache. The rows that are written hold garbage before. Exit 1
// on any failure.

#include "harness.h"
#include "turbo/cuda/write.h"

using namespace turbo_cuda;
using namespace harness;

struct overlap_case {
    int format_k, format_v, head_dim, n_head, n_head_kv, n_rows, n_kv;
    bool scattered; // rows anywhere in the cache, not at its end
    bool skip;      // the newest tokens come from their source; else the attention waits for their rows
    bool later;     // the write comes after the attention where it can
    attend_way way; // teams and warpgroups read the cache: every row of it
    int run;        // cells that share a centre; 0: all share one, which nobody adds

    bool shares() const { return way != attend_way::own; }
    bool halves() const { return way == attend_way::team || way == attend_way::wide; } // queries are not bytes
};

static constexpr int repeats = 25;

struct cache_half {
    std::vector<uint8_t> start;
    device_buffer<uint8_t> data;
    device_buffer<float> source;
    write_tensor write = {};
    kv_tensor read = {};

    cache_half(const overlap_case &c, int format, std::mt19937 &rng, const device_buffer<int64_t> &ids,
               const std::vector<int64_t> &rows, float spread)
        : data((size_t) c.n_kv * c.n_head_kv * reference::row_bytes(format, 128, c.head_dim) + 64),
          source((size_t) c.n_rows * c.n_head_kv * c.head_dim) {
        const size_t head = reference::row_bytes(format, 128, c.head_dim), token = head * c.n_head_kv;
        random_rows(rng, format, 128, c.head_dim, (size_t) c.n_kv * c.n_head_kv, start);
        start.resize(data.count, 0);
        for (int64_t row : rows) {
            std::fill_n(start.begin() + row * token, token, (uint8_t) 0xff);
        }
        std::normal_distribution<float> normal(0.0f, spread);
        std::vector<float> values(source.count);
        for (float &x : values)
            x = normal(rng);
        source.upload(values);
        const int row_values = c.n_head_kv * c.head_dim;
        write.source = (const char *) source.data, write.source_stride[0] = row_values * 4;
        write.target = (char *) data.data, write.target_stride[0] = token;
        write.ids = (const char *) ids.data, write.ids_stride[0] = 8, write.ids_ne[0] = write.ids_ne[1] = 1;
        write.ids_64 = 1, write.format = format, write.block = 128, write.row_values = row_values;
        write.ne1 = c.n_rows, write.ne2 = 1, write.n_rows = c.n_rows;
        read.data = (const char *) data.data, read.format = format;
        read.stride_head = head, read.stride_token = token, read.stride_stream = token * c.n_kv;
    }
};

// The output in double: cached rows decoded, the newest ones (if they are taken from their source) as they are.
static std::vector<double> reference_output(const overlap_case &c, const attend_args &a, const std::vector<float> &q,
                                            const std::vector<int64_t> &rows, const cache_half &k, const cache_half &v,
                                            const std::vector<float> &centre, const std::vector<uint16_t> &centres) {
    const std::vector<uint8_t> cached[2] = {k.data.download(), v.data.download()};
    const std::vector<float> source[2] = {k.source.download(), v.source.download()};
    std::vector<double> out(q.size());
    const bool trellis = c.format_k >= KV_TURBO2_TCQ || c.format_v >= KV_TURBO2_TCQ;
    const bool from_source = c.skip && trellis && !c.shares() && rows.back() - rows.front() == c.n_rows - 1;
    for (int hk = 0; hk < c.n_head_kv; hk++) {
        std::vector<double> decoded[2];
        for (int t = 0; t < 2; t++) {
            const kv_tensor &x = t == 0 ? a.k : a.v;
            decoded[t].resize((size_t) c.n_kv * c.head_dim);
            for (int j = 0; j < c.n_kv; j++) {
                reference::decode_row(&cached[t][j * x.stride_token + hk * x.stride_head], x.format, 128, c.head_dim,
                                      &decoded[t][(size_t) j * c.head_dim]);
            }
            for (int r = 0; from_source && r < c.n_rows; r++) { // of keys below
                for (int i = 0; i < c.head_dim; i++) {
                    const size_t at = ((size_t) r * c.n_head_kv + hk) * c.head_dim + i;
                    decoded[t][rows[r] * c.head_dim + i] = t == 0 ? 0.0 : source[t][at];
                }
            }
        }
        for (int row = 0; row < c.n_rows; row++) {
            for (int g = 0; g < c.n_head / c.n_head_kv; g++) {
                const size_t at = ((size_t) row * c.n_head + hk * (c.n_head / c.n_head_kv) + g) * c.head_dim;
                std::vector<double> added(c.n_kv);
                const size_t values = (size_t) c.n_head_kv * c.head_dim;
                if (c.run > 0) { // what cached keys lack
                    added =
                        reference::run_products(&q[at], &centres[hk * c.head_dim], values, c.run, c.n_kv, c.head_dim);
                }
                for (int r = 0; from_source && r < c.n_rows; r++) {
                    added[rows[r]] = 0.0;
                    for (int i = 0; i < c.head_dim; i++) {
                        const size_t in_row = (size_t) hk * c.head_dim + i;
                        const double key =
                            (double) source[0][r * values + in_row] - (c.run == 0 ? centre[in_row] : 0.0f);
                        added[rows[r]] += q[at + i] * key;
                    }
                }
                const std::vector<double> query = c.halves() ? std::vector<double>(&q[at], &q[at] + c.head_dim)
                                                             : reference::byte_query(&q[at], 128, c.head_dim);
                reference::attention(query.data(), decoded[0], decoded[1], added, nullptr, nullptr, c.n_kv, c.head_dim,
                                     a.scale, 0.0f, &out[at]);
            }
        }
    }
    return out;
}

// Largest relative error of the overlapped runs, NaN or infinite if they differ from each other.
static double run_case(const overlap_case &c, std::mt19937 &rng, const cudaDeviceProp &device) {
    std::vector<int64_t> rows(c.n_rows);
    for (int i = 0; i < c.n_rows; i++) {
        rows[i] = c.scattered ? (int64_t) i * (c.n_kv / c.n_rows) + rng() % (c.n_kv / c.n_rows) : c.n_kv - c.n_rows + i;
    }
    device_buffer<int64_t> ids(rows.size());
    ids.upload(rows);
    cache_half k(c, c.format_k, rng, ids, rows, 2.0f), v(c, c.format_v, rng, ids, rows, 3.0f);
    device_buffer<float> q((size_t) c.n_rows * c.n_head * c.head_dim), out(q.count);
    std::normal_distribution<float> normal;
    std::vector<float> queries(q.count), centre((size_t) c.n_head_kv * c.head_dim);
    for (float &x : queries)
        x = normal(rng);
    for (float &x : centre)
        x = normal(rng);
    q.upload(queries);
    device_buffer<float> dcentre(centre.size());
    dcentre.upload(centre);
    const int values = c.n_head_kv * c.head_dim;
    const std::vector<uint16_t> centres = random_runs(rng, c.n_kv, std::max(c.run, 64), values);
    device_buffer<uint16_t> dcentres(centres.size());
    dcentres.upload(centres);

    attend_args a = {};
    a.q = (const char *) q.data, a.q_stride_head = c.head_dim * 4, a.q_stride_row = a.q_stride_head * c.n_head;
    a.k = k.read, a.v = v.read, a.out = out.data;
    a.head_dim = c.head_dim, a.block = 128, a.n_head = c.n_head, a.n_head_kv = c.n_head_kv, a.n_rows = c.n_rows;
    if (c.run > 0) {
        a.runs = k.write.runs = runs_at(dcentres, c.n_kv, c.run, values, false);
    } else {
        a.pending.centre = k.write.centre = dcentre.data;
    }
    k.write.early = v.write.early = c.later || c.skip; // ids and centres have long been there
    a.n_streams = 1, a.n_kv = c.n_kv, a.scale = 1.0f / std::sqrt((float) c.head_dim);
    a.multiprocessors = device.multiProcessorCount, a.shared_limit = device.sharedMemPerBlockOptin;
    a.clusters = has_clusters(device), a.warpgroups = has_warpgroups(device);
    const attend_plan plan = attend_make_plan(a, 0, 0, c.way);
    device_buffer<float> scratch(attend_scratch_bytes(a, plan) / 4 + 4);
    a.scratch = scratch.data;
    for (int t = 0; t < 2; t++) {
        if (c.skip) {
            a.pending.source[t] = t == 0 ? k.write.source : v.write.source;
            a.pending.source_stride[t] = k.write.source_stride[0];
        }
        a.pending.ids[t] = (const char *) ids.data, a.pending.ids_stride[t] = 8, a.pending.ids_64[t] = 1;
    }
    a.pending.n_rows = c.skip ? c.n_rows : 0;
    a.pending.blocks = write_blocks(k.write, &v.write);

    a.pending.later = c.later && attend_takes_newest(a, plan);

    std::vector<float> got;
    std::vector<uint8_t> written;
    for (int i = 0; i < repeats; i++) {
        k.data.upload(k.start), v.data.upload(v.start);
        out.poison(), scratch.poison();
        CHECK(cudaDeviceSynchronize());
        if (!a.pending.later) {
            CHECK(write_rows(k.write, &v.write, 0));
        }
        CHECK(attend(a, plan, 0));
        if (a.pending.later) {
            CHECK(write_rows(k.write, &v.write, 0));
        }
        CHECK(cudaDeviceSynchronize());
        const std::vector<float> again = out.download();
        const std::vector<uint8_t> cache = k.data.download();
        if (i > 0 && (memcmp(again.data(), got.data(), got.size() * 4) != 0 || cache != written)) {
            return NAN;
        }
        got = again, written = cache;
    }
    const std::vector<double> want = reference_output(c, a, queries, rows, k, v, centre, centres);
    double error = 0, norm = 0;
    for (size_t j = 0; j < got.size(); j++) {
        error += (got[j] - want[j]) * (got[j] - want[j]), norm += want[j] * want[j];
    }
    return std::sqrt(error / norm);
}

int main(int argc, char **argv) {
    case_share share(argc > 1 ? argv[1] : nullptr);
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    std::mt19937 rng(std::random_device{}());
    int failed = 0, total = 0;
    double worst = 0;
    for (int f = KV_TURBO2; f <= KV_TURBO4_TCQ; f++) {
        for (int n_kv : {5, 256, 1000, 9000}) {
            for (int rows : {1, 4}) {
                for (int kind = 0; kind < (rows == 1 ? 6 : 16); kind++) {
                    if (!share.next_is_mine()) {
                        continue;
                    }
                    const bool scattered = kind & 1, later = rows == 1 && kind & 4, skip = kind & 2 || later;
                    const attend_way way = rows == 1 || kind < 4 ? attend_way::own
                                           : kind < 8            ? attend_way::team
                                           : kind < 12           ? attend_way::wide
                                                                 : attend_way::batch;
                    const bool shares = way != attend_way::own;
                    const int head_dim = (f + rows + n_kv) % 2 && !shares ? 256 : 128, heads = shares ? 32 : 16;
                    const int run = total % 3 == 0 ? 0 : 64 * (total % 3);
                    const overlap_case c = {f,    (f + 1) % 6, head_dim, heads, 4,   rows,
                                            n_kv, scattered,   skip,     later, way, run};
                    const double error = run_case(c, rng, device);
                    const bool ok = error < (c.halves() ? 2e-3 : 2e-2); // as in test_attend
                    worst = std::max(worst, error), total++, failed += !ok;
                    if (!ok) {
                        printf("FAIL formats %d/%d D %d rows %d n_kv %d scattered %d skip %d later %d way %d run %d: "
                               "%.3g\n",
                               c.format_k, c.format_v, head_dim, rows, n_kv, scattered, skip, later, (int) way, run,
                               error);
                    }
                }
            }
        }
    }
    printf("overlap: %d cases of %d runs, %d failed, worst relative error %.3g\n", total, repeats, failed, worst);
    return failed != 0;
}
