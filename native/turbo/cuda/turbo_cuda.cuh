// The turbo KV-cache types inside ggml's CUDA backend: what the hooks in the patched tree call.
//
// Every function decides itself whether it is concerned and says so; the hooks are early returns.

#pragma once

#include "common.cuh"
#include "ggml-backend-impl.h"
#include "convert.cuh"

// Is this one of the compressed KV types?
bool turbo_cuda_is_kv_type(ggml_type type);

// SET_ROWS into a turbo type: f32 rows, i64 or i32 ids; src[3], if there, is one f32 row subtracted from each row
// first. False if the target is no turbo type.
bool turbo_cuda_set_rows(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// At a SET_ROWS into a turbo type: if the next node that computes is another one (K and V of a layer), write both in
// one launch. Returns how many further nodes are done with, 0 = none; node i itself may be done with then, too.
int turbo_cuda_try_fuse(ggml_backend_cuda_context & ctx, ggml_cgraph * cgraph, int i);
// Is the node done with for which turbo_cuda_try_fuse has just returned 0?
bool turbo_cuda_is_done(const ggml_tensor * node);

// Before a graph is laid out in memory: keep what is read late from being overwritten. These are the rows of K and V
// that a write beside the graph reads, and the inputs of up and gate products until their activation.
void turbo_cuda_keep(ggml_cgraph * cgraph, ggml_backend_graph_optimize_params * params);
void turbo_cuda_keep_up_gate(ggml_cgraph * cgraph, ggml_backend_graph_optimize_params * params);

// Decode steps: several products of one vector, with the normalising before and the sums behind them, in one launch
// (products.h). The first puts nodes that go together next to each other and keeps in memory what they read, before a
// graph is laid out; the second, at the first node of a group, launches it and returns how many nodes that computes.
// TURBO_FUSED_PRODUCTS=0 in the environment turns both off.
void turbo_cuda_order(ggml_cgraph * cgraph, ggml_backend_graph_optimize_params * params);
int turbo_cuda_fuse_products(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i);
// Likewise, and with the same switch: a token's queries and keys turned by one launch (ropes.h).
void turbo_cuda_order_ropes(ggml_cgraph * cgraph, ggml_backend_graph_optimize_params * params);
int turbo_cuda_fuse_ropes(ggml_backend_cuda_context & ctx, const ggml_cgraph * cgraph, int i);

// Keys of f32 less centres of runs of cells, or with them again (turbo/kv_runs.h): GGML_OP_MAP_CUSTOM2 and 3 of ours.
// False for other operators.
bool turbo_cuda_change_keys(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// Does an attention kernel of upstream's get its keys in full? It does if they lack no centres of runs, and if it reads
// an f16 copy (`lifted`) in which they are put back.
bool turbo_cuda_keys_are_whole(int device, const ggml_tensor * dst, bool lifted);
// Around such a kernel: what it lifts of the keys of `dst` gets the centres back. Null: nothing does.
struct turbo_cuda_lifting {
    explicit turbo_cuda_lifting(const ggml_tensor * dst);
    ~turbo_cuda_lifting();
    turbo_cuda_lifting(const turbo_cuda_lifting &) = delete;

private:
    const ggml_tensor * before;
};

// Has the state of centres changed since this was last asked for the graph? What was captured of it is out of date
// then.
bool turbo_cuda_runs_changed(const void * graph);

// At the end of a graph: wait for writes beside it.
void turbo_cuda_join(ggml_backend_cuda_context & ctx);

// At the first of an expert layer's up and gate products with TURBO_FUSED_UP_GATE=0 in the environment: run both as
// kernels of their own, so that upstream does not fuse them with their activation. Returns as turbo_cuda_try_fuse.
int turbo_cuda_split_up_gate(ggml_backend_cuda_context & ctx, ggml_cgraph * cgraph, int i);

// Does this FLASH_ATTN_EXT run on our own kernels? If not, upstream's kernels can still run it on a lifted f16 copy.
bool turbo_cuda_fattn_supported(int device, const ggml_tensor * dst);
// Run it. False if it is not ours.
bool turbo_cuda_fattn(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
// Bytes its output needs, the scratch behind it included. Only for ops that are ours.
size_t turbo_cuda_fattn_alloc_size(int device, const ggml_tensor * dst);

// Is this an op on turbo types that we can answer for? Then *answer says whether it runs here. FLASH_ATTN_EXT and ops
// that only change shapes are left to the caller.
bool turbo_cuda_supports_op(int device, const ggml_tensor * op, bool * answer);

// CPY between a turbo type and f32 or f16, and GET_ROWS from a turbo type. False if neither side is a turbo type.
bool turbo_cuda_cpy(ggml_backend_cuda_context & ctx, const ggml_tensor * src, ggml_tensor * dst);
bool turbo_cuda_get_rows(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

// Lifting to f16, contiguous and strided; null for other types, but for keys whose centres have to be put back.
to_fp16_cuda_t turbo_cuda_to_fp16(ggml_type type);
to_fp16_nc_cuda_t turbo_cuda_to_fp16_nc(ggml_type type);
