// Flash attention over compressed KV caches on the CPU: the entry points that ggml-cpu calls.
//
// Computes GGML_OP_FLASH_ATTN_EXT with upstream's meaning (scale, mask, ALiBi, logit soft-cap, sinks, grouped heads,
// streams, permuted views), for K and V each f16, q8_0, q4_0 or one of the turbo types, chosen apart. f16 with f16 is
// left to upstream. A tile of keys is unpacked once for all query heads and query rows that attend to it; scores are
// taken and values summed in the rotated domain, so that only queries and outputs are ever rotated.
// Keys may lack the centres of runs of cells (source 5, turbo/kv_runs.h). Only this op adds those back, so it takes such
// an op whatever else would leave it to upstream, and asserts that it can.
// Plain C interface; includable from C11 and C++17.

#ifndef TURBO_CPU_FATTN_H
#define TURBO_CPU_FATTN_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_compute_params;
struct ggml_tensor;

// Compute dst if it is ours. Called by every thread of the op with its own params, like any ggml-cpu op; scratch and
// partial results live in params->wdata. Returns false, having touched nothing, if upstream has to compute dst: types
// or shapes that are not ours, the reference implementation asked for (params->use_ref), or a work buffer that is too
// small. All threads get the same answer.
bool turbo_cpu_fattn(const struct ggml_compute_params *params, struct ggml_tensor *dst);

// Whether types and shapes of dst are ours: with centres of runs among its sources, whether it can be computed at all.
bool turbo_cpu_fattn_reads(const struct ggml_tensor *dst);

// Bytes of params->wdata that dst needs with n_tasks threads: never less than upstream_size, which is what upstream's
// own implementation needs.
size_t turbo_cpu_fattn_work_size(const struct ggml_tensor *dst, int n_tasks, size_t upstream_size);

// Switch for benchmarks and comparisons: with false, every op is left to upstream. On at start. Not for use while a
// graph is being computed.
void turbo_cpu_fattn_enable(bool on);

#ifdef __cplusplus
}
#endif

#endif // TURBO_CPU_FATTN_H
