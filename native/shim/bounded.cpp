#include "bounded.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <string>

// Members of std::string that this library uses are compiled into it, so that they too allocate through the operator
// new below; libstdc++'s copies would use its own.
template class std::basic_string<char>;

namespace {

constexpr size_t STACK_BYTES = 256u << 20;
// Recursion that allocates stops here. The rest is for code that recurses as deeply without allocating: destructors.
constexpr size_t STACK_LIMIT_BYTES = 1u << 20;
constexpr int MAX_NESTING = 512;
constexpr uint32_t TICKS_PER_CLOCK = 64;  // allocations between two looks at the clock

struct account {
    turbo_budget left;
    int64_t deadline_ns;
    const char * stack_top;
    uint32_t ticks = 0;
    const char * met = nullptr;  // the bound that was met first
};

thread_local account * current = nullptr;

int64_t thread_cpu_ns() {
    timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t) t.tv_sec * 1000000000 + t.tv_nsec;
}

// Not the address of a local variable: sanitizers keep those elsewhere.
const char * stack_pointer() {
    return static_cast<const char *>(__builtin_frame_address(0));
}

// The bound that this allocation passes, or nullptr.
const char * over(account & a, size_t bytes) {
    if ((size_t) (a.stack_top - stack_pointer()) > STACK_LIMIT_BYTES) {
        return "is nested too deeply";
    }
    if (bytes > (size_t) std::max<int64_t>(a.left.heap_bytes, 0)) {
        a.left.heap_bytes = 0;
        return "needs too much memory";
    }
    a.left.heap_bytes -= (int64_t) bytes;
    return ++a.ticks % TICKS_PER_CLOCK == 0 && thread_cpu_ns() > a.deadline_ns ? "takes too long" : nullptr;
}

void charge(account & a, size_t bytes) {
    const char * reason = a.met ? a.met : over(a, bytes);  // once is for good: no second try after a catch
    if (reason && std::uncaught_exceptions() == 0) {  // destructors of a stack that unwinds may allocate what they need
        a.met = reason;
        throw turbo_over_budget(reason);
    }
}

struct job {
    const char * what;
    const turbo_budget * budget;  // or nullptr
    const std::function<int32_t()> * f;
    int32_t status;
    std::string error;
};

int32_t run_within(const job & j, const char * stack_top) {
    account a = { *j.budget, thread_cpu_ns() + j.budget->cpu_ms * 1000000, stack_top };
    account * outer = current;
    current = &a;
    const int32_t status = turbo_guard(j.what, *j.f);
    current = outer;
    if (status < 0 && a.met) {  // llama.cpp may have caught the exception and thrown one of its own
        return turbo_fail(TURBO_E_ARGUMENT, "%s %s", j.what, a.met);
    }
    return status;
}

void * run_job(void * data) {
    job & j = *static_cast<job *>(data);
    const turbo_abort_scope scope;
    j.status = j.budget ? run_within(j, stack_pointer()) : turbo_guard(j.what, *j.f);
    if (j.status < 0) {
        turbo_guard(j.what, [&] {
            j.error = turbo_last_error();
            return (int32_t) TURBO_OK;
        });
    }
    return nullptr;
}

int32_t run_on_thread(job & j, size_t stack_bytes) {
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    int failed = pthread_attr_setstacksize(&attributes, stack_bytes);
    if (!failed) {
        failed = pthread_create(&thread, &attributes, run_job, &j);
    }
    pthread_attr_destroy(&attributes);
    if (failed) {
        return turbo_fail(TURBO_E_MEMORY, "%s: no thread with a stack of %zu bytes could be started (error %d)", j.what,
                          stack_bytes, failed);
    }
    pthread_join(thread, nullptr);
    return j.status < 0 ? turbo_fail(j.status, "%s", j.error.c_str()) : j.status;
}

void * allocate(size_t bytes) {
    if (current) {
        charge(*current, bytes);
    }
    void * memory = malloc(bytes ? bytes : 1);
    if (!memory) {
        throw std::bad_alloc();
    }
    return memory;
}

}  // namespace

void * operator new(size_t bytes) {
    return allocate(bytes);
}

void * operator new[](size_t bytes) {
    return allocate(bytes);
}

void operator delete(void * memory) noexcept {
    free(memory);
}

void operator delete[](void * memory) noexcept {
    free(memory);
}

void operator delete(void * memory, size_t) noexcept {
    free(memory);
}

void operator delete[](void * memory, size_t) noexcept {
    free(memory);
}

turbo_budget turbo_text_budget(size_t bytes) {
    return { (256ll << 20) + 1024 * (int64_t) bytes, 5000 + (int64_t) bytes / 200 };
}

bool turbo_nests_too_deeply(const char * text) {
    int depth = 0;
    for (const char * p = text; *p; p++) {
        if (*p == '(' || *p == '[' || *p == '{') {
            depth++;
        } else if (*p == ')' || *p == ']' || *p == '}') {
            depth = std::max(depth - 1, 0);
        }
        if (depth > MAX_NESTING) {
            return true;
        }
    }
    return false;
}

int32_t turbo_bounded(const char * what, const turbo_budget & budget, const std::function<int32_t()> & f) {
    job j = { what, &budget, &f, TURBO_E_INTERNAL, "" };
    return run_on_thread(j, STACK_BYTES);
}

int32_t turbo_within(const char * what, const turbo_budget & budget, const std::function<int32_t()> & f) {
    const job j = { what, &budget, &f, TURBO_E_INTERNAL, "" };
    return run_within(j, stack_pointer());
}

int32_t turbo_deep(const char * what, size_t stack_bytes, const std::function<int32_t()> & f) {
    job j = { what, nullptr, &f, TURBO_E_INTERNAL, "" };
    return run_on_thread(j, stack_bytes);
}
