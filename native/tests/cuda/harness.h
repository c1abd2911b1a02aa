// Small helpers of the CUDA tests and benchmarks: error checks, device buffers, random rows, graph timing.

#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#include <cuda_runtime.h>

#include "reference.h"

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        const cudaError_t error_ = (call);                                                                             \
        if (error_ != cudaSuccess) {                                                                                   \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_));                 \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

namespace harness {

template <class T> struct device_buffer {
    T *data = nullptr;
    size_t count = 0;
    device_buffer() = default;
    explicit device_buffer(size_t n) : count(n) {
        if (n > 0) {
            CHECK(cudaMalloc(&data, n * sizeof(T)));
        }
    }
    device_buffer(const device_buffer &) = delete;
    device_buffer &operator=(const device_buffer &) = delete;
    ~device_buffer() { cudaFree(data); }
    void upload(const std::vector<T> &host) {
        CHECK(cudaMemcpy(data, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice));
    }
    std::vector<T> download() const {
        std::vector<T> host(count);
        CHECK(cudaMemcpy(host.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost));
        return host;
    }
    void poison() { CHECK(cudaMemset(data, 0xff, count * sizeof(T))); }
};

// Fill all shared memory of the device, so that nobody finds in it what the kernel before left there.
static __global__ void fill_shared(uint32_t pattern, int words) {
    extern __shared__ uint32_t shared_words[];
    for (int i = threadIdx.x; i < words; i += blockDim.x) {
        reinterpret_cast<volatile uint32_t *>(shared_words)[i] = pattern;
    }
}
inline void poison_shared(const cudaDeviceProp &device, uint32_t pattern) {
    const int bytes = (int) device.sharedMemPerBlockOptin;
    CHECK(cudaFuncSetAttribute(fill_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
    fill_shared<<<device.multiProcessorCount, 1024, bytes>>>(pattern, bytes / 4);
    CHECK(cudaGetLastError());
}

// A cache whose rows lie one behind the other: tokens of all heads, then the next stream.
inline turbo_cuda::kv_tensor packed_rows(const device_buffer<uint8_t> &data, int format, int block, int head_dim,
                                         int n_head_kv, int n_kv) {
    turbo_cuda::kv_tensor x;
    x.data = (const char *) data.data;
    x.format = format;
    x.stride_head = reference::row_bytes(format, block, head_dim);
    x.stride_token = x.stride_head * n_head_kv;
    x.stride_stream = x.stride_token * n_kv;
    return x;
}

// Centres of runs of `cells` cells, the one centre behind them as a cache has it, for keys of `values` values.
inline std::vector<uint16_t> random_runs(std::mt19937 &rng, int n_kv, int cells, int values) {
    std::normal_distribution<float> normal(0.0f, 2.0f);
    std::vector<uint16_t> rows((size_t) ((n_kv + cells - 1) / cells + 1) * values);
    for (uint16_t &x : rows)
        x = reference::float_to_half(normal(rng));
    return rows;
}

// The same as what the kernels take. Flat: the last row is for all cells.
inline turbo_cuda::key_runs runs_at(const device_buffer<uint16_t> &rows, int n_kv, int cells, int values, bool flat) {
    turbo_cuda::key_runs r = {(const char *) rows.data, values * 2, (int) (rows.count / values), cells, n_kv};
    if (flat) {
        r.rows += (r.n_rows - 1) * r.stride, r.n_rows = 1, r.cells_each = 0;
    }
    return r;
}

// As turbo_run_length (llama/kv_runs.h) has it.
inline int run_length(int n_kv) {
    return 64 * std::min(std::max((n_kv + 8191) / 8192, 1), 4);
}

// The runs of one of `layers` layers whose tables lie one behind the other.
inline turbo_cuda::key_runs runs_of_layer(const device_buffer<uint16_t> &tables, int layer, int layers, int n_kv,
                                          int cells, int values) {
    const int64_t rows = (int64_t) tables.count / layers / values;
    return {(const char *) (tables.data + layer * rows * values), values * 2, (int) rows, cells, n_kv};
}

// Clusters of thread blocks: the device has them and so has the code compiled for it.
inline bool has_clusters(const cudaDeviceProp &device) {
    const int compiled[] = {__CUDA_ARCH_LIST__};
    bool code = false;
    for (int arch : compiled) {
        code |= arch >= 900 && arch / 10 <= device.major * 10 + device.minor;
    }
    return code && device.major >= 9;
}

// Warpgroup products: likewise. They are of this compute capability only.
inline bool has_warpgroups(const cudaDeviceProp &device) {
    return turbo_cuda::attend_wide_compiled() && device.major == 9 && device.minor == 0;
}

// A share of a test's cases, "2/8" being the third of eight: several processes check them in parallel. Without one,
// all.
struct case_share {
    int index = 0, count = 1, seen = 0;
    explicit case_share(const char *text) {
        if (text != nullptr && sscanf(text, "%d/%d", &index, &count) != 2) {
            index = 0, count = 1;
        }
    }
    bool next_is_mine() { return seen++ % count == index; }
};

// Random cache rows: any code is valid, scales are positive and vary.
inline void random_rows(std::mt19937 &rng, int format, int block, int head_dim, size_t heads,
                        std::vector<uint8_t> &out) {
    const int bytes = reference::row_bytes(format, block, head_dim);
    out.resize(heads * bytes);
    for (size_t i = 0; i + 4 <= out.size(); i += 4) {
        const uint32_t x = rng();
        memcpy(&out[i], &x, 4);
    }
    for (size_t i = out.size() / 4 * 4; i < out.size(); i++) {
        out[i] = (uint8_t) rng();
    }
    const bool f16 = format == turbo_cuda::KV_F16;
    const int unit = f16                             ? 2
                     : format == turbo_cuda::KV_Q8_0 ? 34
                     : format == turbo_cuda::KV_Q4_0 ? 18
                                                     : reference::block_bytes(format, block);
    for (size_t at = 0; at + unit <= out.size(); at += unit) {
        const float u = (float) (rng() >> 8) / (1 << 24);
        float scale = 0.5f + u;
        scale *= f16                             ? (rng() & 1 ? 1.0f : -1.0f)
                 : format == turbo_cuda::KV_Q8_0 ? 0.012f
                 : format == turbo_cuda::KV_Q4_0 ? 0.2f
                                                 : 1.0f;
        const uint16_t half = reference::float_to_half(scale);
        if (format >= turbo_cuda::KV_TURBO2_TCQ && format <= turbo_cuda::KV_TURBO4_TCQ) {
            const uint16_t header = (uint16_t) ((half >> 5 & 0x3ff) | (rng() & 63) << 10);
            memcpy(&out[at], &header, 2);
        } else {
            memcpy(&out[at], &half, 2);
        }
    }
}

inline double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

struct timing {
    double median_us, low_us, high_us;
};

// Time of what `enqueue` puts on a stream, as replays of a captured graph.
inline timing time_graph(const std::function<void(cudaStream_t)> &enqueue, int repeats) {
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK(cudaStreamCreate(&stream));
    CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    enqueue(stream);
    CHECK(cudaStreamEndCapture(stream, &graph));
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    cudaEvent_t begin, end;
    CHECK(cudaEventCreate(&begin));
    CHECK(cudaEventCreate(&end));
    std::vector<double> us;
    for (int i = 0; i < repeats + 3; i++) {
        CHECK(cudaEventRecord(begin, stream));
        CHECK(cudaGraphLaunch(exec, stream));
        CHECK(cudaEventRecord(end, stream));
        CHECK(cudaEventSynchronize(end));
        float ms;
        CHECK(cudaEventElapsedTime(&ms, begin, end));
        if (i >= 3) {
            us.push_back(ms * 1e3);
        }
    }
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaStreamDestroy(stream));
    CHECK(cudaEventDestroy(begin));
    CHECK(cudaEventDestroy(end));
    return {median(us), *std::min_element(us.begin(), us.end()), *std::max_element(us.begin(), us.end())};
}

} // namespace harness
