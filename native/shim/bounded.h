// Bounds on what a stranger's text or file may cost. Not installed.
//
// llama.cpp's parsers recurse as deeply and allocate as much as their input says, and its template engine runs what it is
// given. Both become exceptions of the call that met them: operator new, which every step of those parsers and engines
// passes, checks a budget of bytes, CPU time and stack while the calling thread has one. Failed assertions: aborts.h.
#pragma once

#include "guard.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>

struct turbo_budget {
    int64_t heap_bytes;  // allocated in all, freed or not
    int64_t cpu_ms;      // of the thread
};

// Thrown from operator new; what() says which bound was met.
class turbo_over_budget : public std::bad_alloc {
  public:
    explicit turbo_over_budget(const char * reason) : reason(reason) {}
    const char * what() const noexcept override { return reason; }

  private:
    const char * reason;
};

// What is reasonable for a text of `bytes`: measured on real templates and schemas, then some hundred times more.
turbo_budget turbo_text_budget(size_t bytes);

// Runs f on a thread of its own, within the budget and with a deep stack, under turbo_guard. Returns its status;
// TURBO_E_ARGUMENT if a bound was met. The thread's last error becomes the caller's.
int32_t turbo_bounded(const char * what, const turbo_budget & budget, const std::function<int32_t()> & f);

// As turbo_bounded, but on the calling thread: for steps that are many and short.
int32_t turbo_within(const char * what, const turbo_budget & budget, const std::function<int32_t()> & f);

// Runs f on a thread of its own with a stack of `stack_bytes`, under turbo_guard: for recursion whose depth is known to be
// proportional to a text's length. Memory is taken only as far as the recursion reaches.
int32_t turbo_deep(const char * what, size_t stack_bytes, const std::function<int32_t()> & f);

// Whether brackets nest deeper than code or data written by hand or by a program for use ever does. For parsers that recurse
// without allocating, which no budget stops.
bool turbo_nests_too_deeply(const char * text);
