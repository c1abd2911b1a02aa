// Products of a warpgroup (wgmma, sm_90a): 128 threads multiply 64 rows with operands in shared memory, asynchronously.
//
// Accumulators are those of four warps with 16 rows each: d[n][i] of a lane is row lane / 4 (i < 2) or lane / 4 + 8,
// column 8n + 2 (lane % 4) + (i & 1), as with mma_f16. Operands in shared memory lie in rows of 128 bytes whose 16-byte
// chunks are exchanged by the row's last three bits (the hardware's 128-byte swizzle); blocks of such rows begin at a
// multiple of 1,024.

#pragma once

#include "ptx.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define TURBO_WARPGROUP_PRODUCTS 1
#endif

namespace turbo_cuda {

// Where an operand lies, groups of eight rows 1,024 bytes apart. Only the low word differs from operand to operand, and
// it can be counted on.
struct product_operand {
    uint32_t low;

    static __device__ __forceinline__ product_operand at(const void *shared) {
        return {(shared_address(shared) & 0x3ffffu) >> 4};
    }
    __device__ __forceinline__ product_operand operator+(uint32_t bytes) const { return {low + (bytes >> 4)}; }
    __device__ __forceinline__ uint64_t word() const {
        constexpr uint32_t eight_rows = 1024 >> 4, swizzle_128 = 1u << 30;
        return (uint64_t) (swizzle_128 | eight_rows) << 32 | low;
    }
};

#ifdef TURBO_WARPGROUP_PRODUCTS
// Before the first product of a batch: registers written until here are read by it.
static __device__ __forceinline__ void products_begin() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
static __device__ __forceinline__ void products_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Until all batches are done.
static __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}
// Generic writes to shared memory until here become visible to products.
static __device__ __forceinline__ void products_see_memory() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Keep the compiler from moving what it does with accumulators across this place.
template <int n> static __device__ __forceinline__ void hold(float (&d)[n][4]) {
#pragma unroll
    for (int i = 0; i < n; i++) {
        asm volatile("" : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])::"memory");
    }
}
template <int n> static __device__ __forceinline__ void hold(int32_t (&d)[n][4]) {
#pragma unroll
    for (int i = 0; i < n; i++) {
        asm volatile("" : "+r"(d[i][0]), "+r"(d[i][1]), "+r"(d[i][2]), "+r"(d[i][3])::"memory");
    }
}
static __device__ __forceinline__ void hold(float (&d)[4]) {
    asm volatile("" : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])::"memory");
}
// Registers a thread of this warpgroup may use from here on; the sum over the block stays what it was launched with.
template <int count> static __device__ __forceinline__ void registers_up() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count> static __device__ __forceinline__ void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

#define TURBO_D4(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define TURBO_D16(d, i) TURBO_D4(d[i]), TURBO_D4(d[i + 1]), TURBO_D4(d[i + 2]), TURBO_D4(d[i + 3])

// d[64 x 32] = a[64 x 16] b[16 x 32] (+ d if `add`); rows of a and columns of b run along the head.
static __device__ __forceinline__ void product_64(float (&d)[4][4], product_operand a, product_operand b, bool add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %18, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "%16, %17, add, 1, 1, 0, 0;\n}\n"
                 : TURBO_D16(d, 0)
                 : "l"(a.word()), "l"(b.word()), "r"((int) add));
}

// d[64 x 64] = a[64 x 16] b[16 x 64] (+ d if `add`); rows of a and columns of b run along the head.
static __device__ __forceinline__ void product_64(float (&d)[8][4], product_operand a, product_operand b, bool add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, add, 1, 1, 0, 0;\n}\n"
                 : TURBO_D16(d, 0), TURBO_D16(d, 4)
                 : "l"(a.word()), "l"(b.word()), "r"((int) add));
}

// Columns `first` * 8 to + 63 of d[64 x 128] += a[64 x 16] b[16 x 64]: a in registers, as for mma_f16; columns of b run
// across its rows. (All 128 at once would make 94 registers the least that a kernel can be launched with.)
template <int first>
static __device__ __forceinline__ void product_64(float (&d)[16][4], const uint32_t (&a)[4], product_operand b) {
    asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "{%32, %33, %34, %35}, %36, add, 1, 1, 1;\n}\n"
                 : TURBO_D16(d, first), TURBO_D16(d, first + 4)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.word()));
}

// d[64 x 8] += a[64 x 16] b[16 x 8], of b as of the first kind.
static __device__ __forceinline__ void product_64(float (&d)[4], const uint32_t (&a)[4], product_operand b) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, add, 1, 1, 0;\n}\n"
        : TURBO_D4(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.word()));
}

// Both operands as above, but a in registers: as for mma_s8_s8, of signed bytes, or as for mma_f16.
#define TURBO_I4(d) "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
#define TURBO_A4(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
// d[64 x 16] = a[64 x 32] b[32 x 16] (+ d if `add`).
static __device__ __forceinline__ void product_bytes(int32_t (&d)[2][4], const uint32_t (&a)[4], product_operand b,
                                                     bool add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %13, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k32.s32.s8.s8 {%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "{%8, %9, %10, %11}, %12, add;\n}\n"
                 : TURBO_I4(d[0]), TURBO_I4(d[1])
                 : TURBO_A4(a), "l"(b.word()), "r"((int) add));
}
// d[64 x 32] = a[64 x 32] b[32 x 32] (+ d if `add`).
static __device__ __forceinline__ void product_bytes(int32_t (&d)[4][4], const uint32_t (&a)[4], product_operand b,
                                                     bool add) {
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.s32.s8.s8 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, add;\n}\n"
                 : TURBO_I4(d[0]), TURBO_I4(d[1]), TURBO_I4(d[2]), TURBO_I4(d[3])
                 : TURBO_A4(a), "l"(b.word()), "r"((int) add));
}
// d[64 x 16] += a[64 x 16] b[16 x 16].
static __device__ __forceinline__ void product_halves(float (&d)[2][4], const uint32_t (&a)[4], product_operand b) {
    asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, "
                 "{%8, %9, %10, %11}, %12, add, 1, 1, 0;\n}\n"
                 : TURBO_D4(d[0]), TURBO_D4(d[1])
                 : TURBO_A4(a), "l"(b.word()));
}
// d[64 x 32] += a[64 x 16] b[16 x 32].
static __device__ __forceinline__ void product_halves(float (&d)[4][4], const uint32_t (&a)[4], product_operand b) {
    asm volatile("{\n.reg .pred add;\nsetp.eq.b32 add, 0, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
                 "{%16, %17, %18, %19}, %20, add, 1, 1, 0;\n}\n"
                 : TURBO_D16(d, 0)
                 : TURBO_A4(a), "l"(b.word()));
}
#undef TURBO_A4
#undef TURBO_D16
#undef TURBO_D4
#undef TURBO_I4
#endif

} // namespace turbo_cuda
