// Thin names for the PTX instructions the turbo kernels use. No policy here: one function, one instruction.

#pragma once

#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

namespace turbo_cuda {

// Four bytes picked from the eight of (b:a), one per nibble of the low half of `selector`; the top bit of a nibble must
// be clear. (The built-in __byte_perm spends an instruction on clearing it.)
static __device__ __forceinline__ uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t picked;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(picked) : "r"(a), "r"(b), "r"(selector));
    return picked;
}

// Bits of a where `mask` is 1, of b elsewhere.
static __device__ __forceinline__ uint32_t choose_bits(uint32_t mask, uint32_t a, uint32_t b) {
    uint32_t y;
    asm("lop3.b32 %0, %1, %2, %3, 0xca;" : "=r"(y) : "r"(mask), "r"(a), "r"(b));
    return y;
}

// Bits 16 to 31 of x. As a product of two pairs, because shifts are issued where byte
// permutes and logic are, and products are not.
static __device__ __forceinline__ uint32_t upper_half(uint32_t x) {
    uint32_t y;
    asm("dp2a.lo.u32.u32 %0, %1, %2, %3;" : "=r"(y) : "r"(x), "r"(0x0100u), "r"(0u));
    return y;
}

// 8x8 transpose of 16-bit elements across the warp: lane 4r+c holds columns 2c, 2c+1 of row r.
static __device__ __forceinline__ uint32_t transpose_8x8(uint32_t x) {
    uint32_t y;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// c[16x8] += a[16x32] (signed bytes) * b[32x8] (signed bytes).
static __device__ __forceinline__ void mma_s8_s8(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// d[16x8] = a[16x32] (signed bytes) * b[32x8] (signed bytes) + c, the same for all.
static __device__ __forceinline__ void mma_s8_s8(int32_t (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                                 int32_t c) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(c));
}

// c[16x8] += a[16x32] (signed bytes) * b[32x8] (unsigned bytes).
static __device__ __forceinline__ void mma_s8_u8(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c[16x8] += a[16x32] (unsigned bytes) * b[32x8] (unsigned bytes).
static __device__ __forceinline__ void mma_u8_u8(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c[16x8] += a[16x16] (f16) * b[16x8] (f16), accumulated in f32.
static __device__ __forceinline__ void mma_f16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

static __device__ __forceinline__ void mma_f16(float (&c)[4], const uint4 &a, uint32_t b0, uint32_t b1) {
    mma_f16(c, {a.x, a.y, a.z, a.w}, b0, b1);
}

// Four 8x8 matrices of 16-bit elements from shared memory: lane l gives the address of row l % 8 of matrix l / 8, and
// gets of each the elements 2(l % 4), 2(l % 4) + 1 of row l / 4.
static __device__ __forceinline__ void load_matrices(uint32_t (&x)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

// The first two of them, from lanes 0-15.
static __device__ __forceinline__ void load_two_matrices(uint32_t (&x)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0,%1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(address)
                 : "memory");
}

// d[16x8] = a[16x8] (f16) * b[8x8] (f16) + c[16x8], all sums in f32.
static __device__ __forceinline__ void mma_f16_k8(float (&d)[4], const uint32_t (&a)[2], uint32_t b, const float4 &c) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(b), "f"(c.x), "f"(c.y), "f"(c.z), "f"(c.w));
}

// Four 8x8 matrices of 16-bit elements from shared memory, transposed: lane l gives the address of row l % 8 of matrix
// l / 8, and gets of each the elements 2(l % 4), 2(l % 4) + 1 of column l / 4.
static __device__ __forceinline__ void load_matrices_transposed(uint32_t (&x)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
}

// The first two of them, from lanes 0-15.
static __device__ __forceinline__ void load_two_matrices_transposed(uint32_t (&x)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];"
                 : "=r"(x[0]), "=r"(x[1])
                 : "r"(address)
                 : "memory");
}

// Two halves; what is infinite or no number at all becomes the largest number there is.
static __device__ __forceinline__ uint32_t finite_halves(uint32_t x) {
    constexpr uint32_t largest = 0x7bff7bffu;
    uint32_t y;
#if __CUDA_ARCH__ >= 860
    asm("min.xorsign.abs.f16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(largest));
#else
    asm("min.f16x2 %0, %1, %2;" : "=r"(y) : "r"(x), "r"(largest));
    asm("max.f16x2 %0, %1, %2;" : "=r"(y) : "r"(y), "r"(largest ^ 0x80008000u));
#endif
    return y;
}

// a * b + c, where a may be a denormal number: as one, an integer below 2^24 is 2^-149 times itself.
static __device__ __forceinline__ float multiply_add_denormal(uint32_t a, float b, float c) {
    float y;
    asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(__uint_as_float(a)), "f"(b), "f"(c));
    return y;
}

// 2^x, 0 for -inf.
static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Ask for the line at an address, so that it is in the second-level cache when it is read.
static __device__ __forceinline__ void prefetch_l2(const void *global) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

// Start copying 16 bytes from device memory to shared memory; both addresses aligned to 16.
static __device__ __forceinline__ void copy_async_16(uint32_t shared_address, const void *global) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address), "l"(global) : "memory");
}
static __device__ __forceinline__ void copy_async_16(void *shared, const void *global) {
    copy_async_16((uint32_t) __cvta_generic_to_shared(shared), global);
}
static __device__ __forceinline__ uint4 load_shared_16(uint32_t shared_address) {
    uint4 x;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(shared_address)
                 : "memory");
    return x;
}
static __device__ __forceinline__ float2 load_shared_floats(uint32_t shared_address) {
    float2 x;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(shared_address) : "memory");
    return x;
}
static __device__ __forceinline__ int2 load_shared_ints(uint32_t shared_address) {
    int2 x;
    asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(shared_address) : "memory");
    return x;
}
static __device__ __forceinline__ void store_shared(uint32_t shared_address, uint32_t x) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared_address), "r"(x) : "memory");
}
static __device__ __forceinline__ void store_shared_16(uint32_t shared_address, const uint4 &x) {
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address), "r"(x.x), "r"(x.y), "r"(x.z),
                 "r"(x.w)
                 : "memory");
}
// The larger of x and what is there.
static __device__ __forceinline__ void raise_shared(uint32_t shared_address, int x) {
    asm volatile("red.shared.max.s32 [%0], %1;" ::"r"(shared_address), "r"(x) : "memory");
}
// Keep the compiler from computing x anew wherever it is used, which it prefers to a register: it cannot know what
// comes out of a shuffle.
static __device__ __forceinline__ void keep(uint32_t &x) {
    x = __shfl_sync(0xffffffffu, x, threadIdx.x & 31);
}
static __device__ __forceinline__ void copy_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
static __device__ __forceinline__ void copy_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}
template <int pending> static __device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Barrier `id` (1-15) among `threads` threads of the block.
static __device__ __forceinline__ void barrier(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The same; is `x` true in any of them?
static __device__ __forceinline__ bool barrier_any(int id, int threads, bool x) {
    int any;
    asm volatile("{\n.reg .pred x, any;\nsetp.ne.s32 x, %3, 0;\nbar.red.or.pred any, %1, %2, x;\n"
                 "selp.s32 %0, 1, 0, any;\n}\n"
                 : "=r"(any)
                 : "r"(id), "r"(threads), "r"((int) x)
                 : "memory");
    return any != 0;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define TURBO_BULK_COPY 1 // the copy engine and its barriers
#endif

// Barriers in shared memory (sm_90): a phase ends when all arrivals and all announced bytes have come.
static __device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t) __cvta_generic_to_shared(p);
}
static __device__ __forceinline__ void phase_init(uint64_t *phase, int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(phase)), "r"(arrivals) : "memory");
}
#ifdef TURBO_BULK_COPY
// What this thread has initialised can be used by the copy engine.
static __device__ __forceinline__ void phases_ready() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
static __device__ __forceinline__ void phase_arrive(uint64_t *phase) {
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(phase)) : "memory");
}
static __device__ __forceinline__ void phase_arrive_with_bytes(uint64_t *phase, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(phase)), "r"(bytes)
                 : "memory");
}
static __device__ __forceinline__ void phase_wait(uint64_t *phase, uint32_t parity) {
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}\n" ::"r"(shared_address(phase)),
                 "r"(parity)
                 : "memory");
}
// Let the copy engine fetch `bytes` (all three a multiple of 16) and report to `phase`.
static __device__ __forceinline__ void bulk_copy(void *shared, const void *global, uint32_t bytes, uint64_t *phase) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                     shared_address(shared)),
                 "l"(global), "r"(bytes), "r"(shared_address(phase))
                 : "memory");
}
#endif

// Clusters of thread blocks (sm_90): a barrier of all, and reading the shared memory of another one.
#ifdef TURBO_BULK_COPY
#define TURBO_CLUSTERS 1
static __device__ __forceinline__ uint32_t cluster_address(const void *shared, int rank) {
    uint32_t address;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(shared)), "r"(rank));
    return address;
}
static __device__ __forceinline__ float4 cluster_load_4(uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
static __device__ __forceinline__ void cluster_store_4(uint32_t address, const float4 &v) {
    asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(v.x), "f"(v.y), "f"(v.z),
                 "f"(v.w)
                 : "memory");
}
static __device__ __forceinline__ void cluster_store_2(uint32_t address, const float2 &v) {
    asm volatile("st.shared::cluster.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(v.x), "f"(v.y) : "memory");
}
static __device__ __forceinline__ float2 cluster_load_2(uint32_t address) {
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
    return v;
}
#endif
static __device__ __forceinline__ void cluster_arrive() {
#ifdef TURBO_CLUSTERS
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void cluster_wait() {
#ifdef TURBO_CLUSTERS
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
static __device__ __forceinline__ void cluster_barrier() {
    cluster_arrive();
    cluster_wait();
}

// Programmatic dependent launch: wait for the kernels before this one; let the next one start.
// No-ops before sm_90 and in launches without the attribute.
static __device__ __forceinline__ void wait_for_previous_kernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
static __device__ __forceinline__ void let_next_kernel_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

} // namespace turbo_cuda
