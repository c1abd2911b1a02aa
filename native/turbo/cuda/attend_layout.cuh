// Where the parts of the attention kernel's shared memory begin.

#pragma once

#include "attend_params.cuh"
#include "decode.cuh"
#include "stage.cuh"

namespace turbo_cuda {

// Where the parts of a launch's shared memory begin.
template <class shape> struct shared_layout {
    uint8_t *base;
    // What outlives the walk: pending rows, the first run, the maximum of every column [warp][column], and the barriers
    // [group][2 * ring_slots]. Those would have to be invalidated before their memory is used for anything else: what
    // came there instead was lost when several processes shared the device, once in 50,000 launches.
    static constexpr int maxima_at = 16, barriers_at = maxima_at + shape::warps * shape::columns * (int) sizeof(float),
                         header = barriers_at + barrier_bytes(shape::warps);
    __device__ pending_rows *pending() const { return reinterpret_cast<pending_rows *>(base); }
    __device__ int *first_run() const { return reinterpret_cast<int *>(base + 8); } // of the block's stretch
    __device__ float *maxima() const { return reinterpret_cast<float *>(base + maxima_at); }
    __device__ uint64_t *barriers(int group) const {
        return reinterpret_cast<uint64_t *>(base + barriers_at) + group * 2 * ring_slots;
    }
    // While walking:
    __device__ uint4 *fragments(int head) const {
        return reinterpret_cast<uint4 *>(base + header) + head * shape::tiles * shape::blocks * shape::fragments;
    }
    __device__ float *scales(const attend_params &p, int head) const {
        return reinterpret_cast<float *>(fragments(p.heads_per_block)) + head * shape::tiles * shape::blocks * 8;
    }
    static __host__ __device__ int scale_row(const attend_params &p) { // of all heads
        return p.heads_per_block * shape::tiles * shape::blocks * 8;
    }
    // A row like the scales behind them, if there is one (shape::query_rows): what a query adds up to.
    __device__ float *query_sums(const attend_params &p, int head) const { return scales(p, head) + scale_row(p); }
    // What the runs of the block's stretch add to its scores (block by block of a head): a row for each, behind those,
    // so that whoever has the scales needs no other address.
    static __host__ __device__ int run_bytes(const attend_params &p) {
        return p.run_room * scale_row(p) * (int) sizeof(float);
    }
    static __host__ __device__ int table_bytes(int format) { return look_up_bytes(format, shape::look_up); }
    // Look-up tables for K and V, one for both if they have the same format.
    __device__ uint8_t *k_table(const attend_params &p) const {
        return reinterpret_cast<uint8_t *>(scales(p, 0) + (shape::query_rows + p.run_room) * scale_row(p));
    }
    __device__ uint8_t *v_table(const attend_params &p) const {
        return k_table(p) + (p.v.format == p.k.format ? 0 : table_bytes(p.k.format));
    }
    // Of the rows that are not read from the cache: values [head][row][head_dim], then scores [head][row][column].
    __device__ float *newest_values(const attend_params &p) const {
        return reinterpret_cast<float *>(v_table(p) + table_bytes(p.v.format));
    }
    __device__ float *newest_scores(const attend_params &p) const {
        return newest_values(p) + p.heads_per_block * p.pending.n_rows * shape::head_dim;
    }
    static __host__ __device__ int newest_bytes(const attend_params &p) {
        const int rows = p.takes_newest ? p.pending.n_rows : 0;
        return p.heads_per_block * rows * (shape::head_dim + shape::columns) * (int) sizeof(float);
    }
    __device__ uint8_t *ring(const attend_params &p, int group) const {
        return reinterpret_cast<uint8_t *>(newest_values(p)) + newest_bytes(p) + group * ring_slots * p.slot_bytes;
    }
    // Afterwards: the groups' outputs [group][head][column][parked_row], their sums [group][head][column], the maxima
    // of all groups together [head][column], and (maximum, sum) of all, for a cluster.
    static __host__ __device__ size_t parked_bytes(const attend_params &p, int groups) {
        const size_t columns = (size_t) p.heads_per_block * shape::columns;
        return (groups * columns * (shape::parked_row + 1) + 3 * columns) * sizeof(float);
    }
    __device__ float *parked() const { return reinterpret_cast<float *>(base + header); }
    __device__ float *sums(const attend_params &p) const {
        return parked() + p.groups * p.heads_per_block * shape::columns * shape::parked_row;
    }
    __device__ float *tops(const attend_params &p) const {
        return sums(p) + p.groups * p.heads_per_block * shape::columns;
    }
    __device__ float *merged(const attend_params &p) const { return tops(p) + p.heads_per_block * shape::columns; }
};

} // namespace turbo_cuda
