// A preloaded library that makes allocations of the native library fail: on a thread, the n-th after fail_alloc_arm.
//
//   malloc, calloc of arrays, posix_memalign of buffers: null, ENOMEM. Only calls from the library itself count, so that
//                       Python and the C library go on as ever. operator new comes here too. What is left out, ggml
//                       uses without looking: realloc (lists of buffers), single structs from calloc, small aligned
//                       allocations (two for each run of a CPU graph).
//   cudaMalloc:         asks CUDA for more than there can be, so that CUDA itself reports out of memory, its last error
//                       included. From the n-th on every one: the backend's pool gives back what it can and tries again.
//
// Built by the tests: cc -shared -fPIC -o fail_alloc.so fail_alloc.c -ldl

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libllama_turbo.so"
#define BUFFER_BYTES 16384

extern void * __libc_malloc(size_t);
extern void * __libc_calloc(size_t, size_t);
extern void * __libc_memalign(size_t, size_t);

static uintptr_t code_begin, code_end;         // the library's text
static __thread long host_at, device_from;     // which one fails, which is the first that does; 0: none
static __thread long host_seen, device_seen;   // since the last arming

static int find_code(struct dl_phdr_info * info, size_t size, void * data) {
    (void) size, (void) data;
    if (info->dlpi_name && strstr(info->dlpi_name, LIBRARY)) {
        for (int i = 0; i < info->dlpi_phnum; i++) {
            const ElfW(Phdr) * part = &info->dlpi_phdr[i];
            if (part->p_type == PT_LOAD && (part->p_flags & PF_X)) {
                code_begin = info->dlpi_addr + part->p_vaddr;
                code_end = code_begin + part->p_memsz;
            }
        }
    }
    return 0;
}

// Lets the host's n-th allocation from now on fail on this thread, and the device's from the n-th on; 0 lets none fail.
void fail_alloc_arm(long host, long device) {
    dl_iterate_phdr(find_code, NULL);
    host_at = host, device_from = device;
    host_seen = device_seen = 0;
}

// Allocations of the library on this thread since fail_alloc_arm.
long fail_alloc_host(void) {
    return host_seen;
}

long fail_alloc_device(void) {
    return device_seen;
}

static int fails(const void * caller) {
    if ((uintptr_t) caller < code_begin || (uintptr_t) caller >= code_end) {
        return 0;
    }
    return ++host_seen == host_at;
}

#define FAIL_HERE(result)                        \
    if (fails(__builtin_return_address(0))) {    \
        errno = ENOMEM;                          \
        return result;                           \
    }

void * malloc(size_t n) {
    FAIL_HERE(NULL)
    return __libc_malloc(n);
}

void * calloc(size_t n, size_t size) {
    if (n > 1) {
        FAIL_HERE(NULL)
    }
    return __libc_calloc(n, size);
}

int posix_memalign(void ** out, size_t alignment, size_t n) {
    if (n >= BUFFER_BYTES) {
        FAIL_HERE(ENOMEM)
    }
    *out = __libc_memalign(alignment, n);
    return *out ? 0 : ENOMEM;
}

// The CUDA runtime's own functions, without its headers: cudaError_t is an int, cudaSuccess 0.
typedef int (*cuda_alloc)(void **, size_t);

int cudaMalloc(void ** out, size_t n) {
    static cuda_alloc real;
    if (!real) {  // the runtime came with the library, outside the global scope
        void * runtime = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
        runtime = runtime ? runtime : dlopen("libcudart.so.12", RTLD_NOW | RTLD_NOLOAD);
        real = runtime ? (cuda_alloc) dlsym(runtime, "cudaMalloc") : NULL;
    }
    if (!real) {
        return 2;  // cudaErrorMemoryAllocation
    }
    return real(out, ++device_seen >= device_from && device_from > 0 ? (size_t) 1 << 50 : n);
}
