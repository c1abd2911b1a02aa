// Attention kernels against a float64 reference on fresh random input. Exit 1 if any case is off.
//   test_attend [small | I/N]     small: a short list, for compute-sanitizer; I/N: a share of the cases

#include "harness.h"

using namespace turbo_cuda;
using namespace harness;

struct attend_case {
    int format_k, format_v, block, head_dim, n_head, n_head_kv, n_rows, n_streams, n_kv;
    float soft_cap = 0;
    bool sinks = false, mask = true, window = false;
    int slices = 0, splits = 0;
    bool loud_hidden = false; // values of hidden tokens are huge
    attend_way way = attend_way::best;
    int run = 0; // cells that share a centre which their keys lack; queries are scaled then, too
    bool flat = false;
    bool loud_real = false; // values of some real tokens are large
};

static const char *format_name(int f) {
    static const char *names[] = {"turbo2",     "turbo3", "turbo4", "turbo2_tcq", "turbo3_tcq",
                                  "turbo4_tcq", "f16",    "q8_0",   "q4_0"};
    return names[f];
}

static std::vector<double> decode_head(const std::vector<uint8_t> &rows, const kv_tensor &x, const attend_case &c,
                                       int stream, int head, bool rounded) {
    std::vector<double> out((size_t) c.n_kv * c.head_dim);
    for (int j = 0; j < c.n_kv; j++) {
        reference::decode_row(&rows[stream * x.stride_stream + j * x.stride_token + head * x.stride_head], x.format,
                              c.block, c.head_dim, &out[(size_t) j * c.head_dim], rounded);
    }
    return out;
}

// Products of a query with what the keys of a head lack.
static std::vector<double> lacking(const float *q, const std::vector<uint16_t> &centres, const attend_case &c,
                                   int head) {
    if (c.run == 0) {
        return std::vector<double>(c.n_kv);
    }
    const size_t values = (size_t) c.n_head_kv * c.head_dim, last = centres.size() / values - 1;
    return reference::run_products(q, &centres[(c.flat ? last * values : 0) + head * c.head_dim], values,
                                   c.flat ? 0 : c.run, c.n_kv, c.head_dim);
}

static std::vector<uint16_t> make_mask(std::mt19937 &rng, const attend_case &c) {
    std::vector<uint16_t> mask((size_t) c.n_streams * c.n_rows * c.n_kv);
    for (int s = 0; s < c.n_streams * c.n_rows; s++) {
        const int end = std::max(1, c.n_kv - 3 * (c.n_rows - 1 - s % c.n_rows)),
                  begin = c.window ? std::max(0, end - 100) : 0;
        for (int j = 0; j < c.n_kv; j++) {
            const bool hidden = j < begin || j >= end || (rng() % 13 == 0 && j != end - 1);
            mask[(size_t) s * c.n_kv + j] = hidden ? 0xfc00 : rng() % 7 == 0 ? reference::float_to_half(-0.75f) : 0;
        }
    }
    return mask;
}

// Relative error of the output; `shared`: tiles were unpacked to f16 for several warps.
static double run_case(const attend_case &c, std::mt19937 &rng, const cudaDeviceProp &device, bool &shared) {
    std::vector<uint8_t> k, v;
    random_rows(rng, c.format_k, c.block, c.head_dim, (size_t) c.n_streams * c.n_kv * c.n_head_kv, k);
    random_rows(rng, c.format_v, c.block, c.head_dim, (size_t) c.n_streams * c.n_kv * c.n_head_kv, v);
    std::vector<float> q((size_t) c.n_streams * c.n_rows * c.n_head * c.head_dim), sinks(c.n_head);
    std::normal_distribution<float> normal;
    for (float &x : q)
        x = 1.5f * normal(rng);
    for (float &x : sinks)
        x = normal(rng);
    const std::vector<uint16_t> mask = make_mask(rng, c);
    if (c.mask && c.loud_hidden) { // what is hidden from every row may hold anything
        const size_t token = (size_t) reference::row_bytes(c.format_v, c.block, c.head_dim) * c.n_head_kv;
        const int blocks = c.head_dim / c.block * c.n_head_kv;
        for (int s = 0; s < c.n_streams; s++) {
            for (int j = 0; j < c.n_kv; j++) {
                bool hidden = true;
                for (int r = 0; r < c.n_rows; r++) {
                    hidden &= mask[((size_t) s * c.n_rows + r) * c.n_kv + j] == 0xfc00;
                }
                for (int b = 0; hidden && b < blocks; b++) { // an f16 scale of 30,000 first, or its upper bits
                    uint8_t *block = &v[((size_t) s * c.n_kv + j) * token + b * (token / blocks)];
                    const uint16_t loud = reference::float_to_half(30000.0f);
                    const bool trellis = c.format_v >= KV_TURBO2_TCQ && c.format_v <= KV_TURBO4_TCQ;
                    const uint16_t kept = trellis ? (block[0] | block[1] << 8) & 0xfc00 : 0;
                    const uint16_t header = trellis ? kept | loud >> 5 : loud;
                    block[0] = (uint8_t) header, block[1] = (uint8_t) (header >> 8);
                }
            }
        }
    }

    std::vector<uint16_t> centres;
    std::vector<float> q_scale((size_t) c.n_head * c.head_dim, 1.0f);
    if (c.run > 0) {
        centres = random_runs(rng, c.n_kv, c.run, c.n_head_kv * c.head_dim);
        const int group = c.n_head / c.n_head_kv * c.head_dim; // alike within a group
        for (int i = 0; i < c.n_head * c.head_dim; i++) {
            const int first = i / group * group + i % c.head_dim;
            q_scale[i] = i == first ? std::exp(0.3f * normal(rng)) : q_scale[first];
        }
    }
    device_buffer<uint16_t> dcentres(centres.size());
    device_buffer<float> dq_scale(q_scale.size());
    if (c.run > 0) {
        dcentres.upload(centres), dq_scale.upload(q_scale);
    }
    if (c.loud_real) { // q8_0: an f16 scale leads every 34 bytes
        const uint16_t scale = reference::float_to_half(5.0f);
        for (size_t at = rng() % 50 * 34; at < v.size(); at += (1 + rng() % 900) * 34) {
            memcpy(&v[at], &scale, sizeof(scale));
        }
    }

    device_buffer<uint8_t> dk(k.size() + 64), dv(v.size() + 64);
    device_buffer<float> dq(q.size()), dsinks(sinks.size()), out(q.size());
    device_buffer<uint16_t> dmask(mask.size());
    dk.upload(k), dv.upload(v), dq.upload(q), dsinks.upload(sinks), dmask.upload(mask);
    out.poison();

    attend_args a = {};
    a.q = (const char *) dq.data;
    a.q_stride_head = c.head_dim * 4, a.q_stride_row = a.q_stride_head * c.n_head,
    a.q_stride_stream = a.q_stride_row * c.n_rows;
    a.k = packed_rows(dk, c.format_k, c.block, c.head_dim, c.n_head_kv, c.n_kv);
    a.v = packed_rows(dv, c.format_v, c.block, c.head_dim, c.n_head_kv, c.n_kv);
    if (c.run > 0) {
        a.runs = runs_at(dcentres, c.n_kv, c.run, c.n_head_kv * c.head_dim, c.flat);
        a.q_scale = dq_scale.data;
    }
    a.mask = c.mask ? (const char *) dmask.data : nullptr;
    a.mask_stride_row = c.n_kv * 2, a.mask_stride_stream = a.mask_stride_row * c.n_rows;
    a.sinks = c.sinks ? dsinks.data : nullptr;
    a.out = out.data;
    a.head_dim = c.head_dim, a.block = c.block, a.n_head = c.n_head, a.n_head_kv = c.n_head_kv, a.n_rows = c.n_rows,
    a.n_streams = c.n_streams, a.n_kv = c.n_kv;
    a.scale = 1.0f / std::sqrt((float) c.head_dim), a.soft_cap = c.soft_cap;
    a.multiprocessors = device.multiProcessorCount, a.shared_limit = device.sharedMemPerBlockOptin;
    a.clusters = has_clusters(device), a.warpgroups = has_warpgroups(device);
    attend_plan plan = attend_make_plan(a, 0, c.slices, c.way);
    shared = plan.warps_per_head > 0 && !plan.batch;
    if (c.splits && !(plan.wide && c.splits == 1)) { // those always share the cache out
        plan.splits = c.splits, plan.cluster = 0;
    }
    device_buffer<float> scratch(attend_scratch_bytes(a, plan) / 4);
    if (scratch.count) {
        scratch.poison();
    }
    a.scratch = scratch.data;
    CHECK(attend(a, plan, 0));
    CHECK(cudaDeviceSynchronize());
    const std::vector<float> got = out.download();

    double error = 0, norm = 0;
    std::vector<double> want(c.head_dim);
    for (int s = 0; s < c.n_streams; s++) {
        for (int hk = 0; hk < c.n_head_kv; hk++) {
            const bool rounded = plan.warps_per_head == 0; // what warps that unpack for themselves read turbo4 as
            const std::vector<double> kd = decode_head(k, a.k, c, s, hk, rounded),
                                      vd = decode_head(v, a.v, c, s, hk, rounded);
            for (int r = 0; r < c.n_rows; r++) {
                for (int g = 0; g < c.n_head / c.n_head_kv; g++) {
                    const int h = hk * (c.n_head / c.n_head_kv) + g;
                    const size_t at = (((size_t) s * c.n_rows + r) * c.n_head + h) * c.head_dim;
                    std::vector<float> scaled(c.head_dim);
                    for (int i = 0; i < c.head_dim; i++) {
                        scaled[i] = q[at + i] * q_scale[(size_t) h * c.head_dim + i];
                    }
                    const std::vector<double> query = c.format_k < KV_F16 && !shared
                                                          ? reference::byte_query(scaled.data(), c.block, c.head_dim)
                                                          : std::vector<double>(scaled.begin(), scaled.end());
                    reference::attention(query.data(), kd, vd, lacking(scaled.data(), centres, c, hk),
                                         c.mask ? &mask[((size_t) s * c.n_rows + r) * c.n_kv] : nullptr,
                                         c.sinks ? &sinks[h] : nullptr, c.n_kv, c.head_dim, a.scale, c.soft_cap,
                                         want.data());
                    for (int i = 0; i < c.head_dim; i++) {
                        const double d = got[at + i] - want[i];
                        error += std::isfinite(got[at + i]) ? d * d : INFINITY;
                        norm += want[i] * want[i];
                    }
                }
            }
        }
    }
    return std::sqrt(error / norm);
}

static std::vector<attend_case> make_cases(bool small) {
    std::vector<attend_case> cases;
    for (int f = KV_TURBO2; f <= KV_TURBO4_TCQ; f++) {
        cases.push_back({f, f, 128, 128, 32, 4, 1, 1, 512});
        if (small) {
            cases.push_back({f, KV_TURBO3, 128, 128, 16, 2, 3, 2, 100});
            continue;
        }
        for (int n_kv : {1, 7, 33, 64, 65, 1000, 4096}) {
            cases.push_back({f, f, 128, 128, 32, 4, 1, 1, n_kv});
            cases.back().loud_hidden = n_kv >= 64;
        }
        for (int slices : {1, 2, 4}) {
            for (int splits : {1, 2, 5, 16}) {
                attend_case c = {f, f, 128, 128, 32, 4, 1, 1, 1030};
                c.slices = slices, c.splits = splits;
                cases.push_back(c);
            }
        }
        for (int gqa : {1, 2, 3, 4, 5, 6, 7, 8, 16}) {
            for (int heads : {1, 2, 3, 8, 16}) {
                cases.push_back({f, KV_TURBO3, 128, 128, heads * gqa, heads, 1, 1, 300});
            }
        }
        for (int n_kv : {1, 33, 1000, 4099}) { // teams, of every pair of kinds
            cases.push_back({f, (f + n_kv) % (KV_Q4_0 + 1), 128, 128, 32, 4, 3, 1, n_kv});
            cases.push_back({(f + n_kv) % (KV_Q4_0 + 1), f, 128, 128, 24, 8, 8, 1, n_kv});
            cases.push_back({KV_F16 + f % 3, f, 128, 128, 18, 3, 4, 2, n_kv});
            cases.back().loud_hidden = n_kv >= 1000;
        }
        for (int rows : {2, 3, 4, 8, 16}) {
            cases.push_back({f, f, 128, 128, 32, 4, rows, 1, 777});
            cases.push_back({KV_TURBO4, f, 128, 128, 12, 2, rows, 3, 256});
        }
        for (int rows : {1, 3}) {
            for (int n_kv : {33, 700, 2500}) {
                cases.push_back({f, KV_TURBO3, 64, 64, 9, 3, rows, 2, n_kv});
                cases.push_back({KV_TURBO2, f, 64, 64, 14, 2, rows, 1, n_kv});
                cases.push_back({f, f, 128, 256, 8, 4, rows, 1, n_kv});
                cases.push_back({f, f, 128, 256, 16, 2, rows, 1, n_kv});
                cases.push_back({f, f, 128, 512, 16, 2, rows, 1, n_kv});
            }
        }
        if (f < KV_TURBO2_TCQ) {
            const int plain = KV_F16 + f; // the plain formats, against each other and mixed
            for (int other : {(int) KV_TURBO3, (int) KV_TURBO4_TCQ, (int) KV_Q8_0, plain}) {
                for (int n_kv : {1, 33, 256, 1500}) {
                    cases.push_back({plain, other, 128, 128, 32, 4, 1, 1, n_kv});
                    cases.push_back({other, plain, 128, 128, 12, 2, 3, 2, n_kv});
                    cases.push_back({plain, other, 64, 64, 9, 3, 2, 1, n_kv});
                    cases.push_back({plain, other, 128, 256, 8, 4, 1, 1, n_kv});
                    cases.push_back({other, plain, 128, 512, 16, 2, 1, 1, n_kv});
                }
            }
        }
        attend_case c = {f, KV_TURBO2, 128, 128, 32, 4, 2, 2, 515};
        c.soft_cap = 20;
        cases.push_back(c);
        c.soft_cap = 0, c.sinks = true;
        cases.push_back(c);
        c.window = true;
        cases.push_back(c);
        c.mask = false;
        cases.push_back(c);
    }
    // q8_0 as bytes (attend_q8.cuh): whole and part tiles of both lengths, heads at either place within 16 bytes
    for (int v : {(int) KV_Q8_0, (int) KV_TURBO3}) {
        cases.push_back({KV_Q8_0, v, 128, 128, 32, 4, 1, 1, 530});
        if (small) {
            continue;
        }
        for (int slices : {1, 2}) {
            for (int splits : {1, 2, 5, 16}) {
                attend_case c = {KV_Q8_0, v, 128, 128, 32, 4, 1, 1, 1030 + 7 * splits};
                c.slices = slices, c.splits = splits;
                cases.push_back(c);
                c.n_head = 8, c.n_head_kv = 8, c.n_streams = 2, c.loud_hidden = true;
                cases.push_back(c);
                c.loud_hidden = false, c.loud_real = v == KV_Q8_0;
                cases.push_back(c);
            }
        }
        for (int heads : {1, 2, 3, 5, 8, 16}) {
            for (int n_kv : {1, 20, 300, 5000}) {
                cases.push_back({KV_Q8_0, v, 128, 128, heads * (1 + n_kv % 8), heads, 1, 1, n_kv});
            }
        }
        cases.push_back({KV_Q8_0, v, 128, 128, 32, 4, 1, 1, 40000});
        cases.push_back({KV_Q8_0, v, 128, 128, 10, 2, 1, 3, 9000});
        cases.back().soft_cap = 20, cases.back().sinks = true;
    }
    // the same with centres of runs of each length, and with one centre for all cells
    for (size_t i = 0, n = cases.size(); i < n; i++) {
        if (small || i % 3 == 0) {
            cases.push_back(cases[i]);
            cases.back().run = 64 * (1 + i / 3 % 4);
            cases.back().flat = i / 3 % 5 == 4;
        }
    }
    for (size_t i = 0, n = cases.size(); i < n; i++) {
        const int columns = cases[i].n_head / cases[i].n_head_kv * cases[i].n_rows;
        for (attend_way way : {attend_way::team, attend_way::wide, attend_way::batch}) {
            const bool codes = cases[i].format_k < KV_F16 && cases[i].format_v < KV_F16;
            if (cases[i].head_dim == 128 && columns > (way == attend_way::team ? 16 : 8) &&
                (codes || way != attend_way::batch)) {
                cases.push_back(cases[i]);
                cases.back().way = way;
            }
        }
    }
    return cases;
}

int main(int argc, char **argv) {
    cudaDeviceProp device;
    CHECK(cudaGetDeviceProperties(&device, 0));
    std::mt19937 rng(std::random_device{}());
    int failed = 0, total = 0;
    double worst = 0;
    case_share share(argc > 1 ? argv[1] : nullptr);
    for (const attend_case &c : make_cases(argc > 1 && strcmp(argv[1], "small") == 0)) {
        if (!share.next_is_mine()) {
            continue;
        }
        bool shared; // unpacked for several warps
        const double error = run_case(c, rng, device, shared);
        // Plain formats are rounded to f16 after scaling, as f16 attention does, and so is everything that teams
        // unpack. Otherwise probabilities are bytes; what queries and turbo4's codes are rounded to is in the
        // reference.
        const bool ok = error < (c.format_v >= KV_F16 || shared ? 2e-3 : 2e-2);
        worst = std::max(worst, error);
        total++;
        failed += !ok;
        if (!ok) {
            printf("FAIL %s/%s D %d heads %d/%d rows %d streams %d n_kv %d slices %d splits %d way %d run %d flat %d "
                   "cap %g sinks %d: %.3g\n",
                   format_name(c.format_k), format_name(c.format_v), c.head_dim, c.n_head, c.n_head_kv, c.n_rows,
                   c.n_streams, c.n_kv, c.slices, c.splits, (int) c.way, c.run, c.flat, c.soft_cap, c.sinks, error);
        }
    }
    printf("attend: %d cases, %d failed, worst relative error %.3g\n", total, failed, worst);
    return failed != 0;
}
