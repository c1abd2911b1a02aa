// Failed assertions and device errors of llama.cpp as exceptions of the call that met them. Not installed.
//
// ggml ends the process when one of its assertions fails or CUDA reports an error. Its abort hook is called first, and
// throws where that is safe:
//   * a device error, in every guarded call: CUDA's part of a graph is enqueued by the calling thread. Not while a CUDA
//     graph is being recorded, which nothing could end (nothing is allocated then);
//   * any assertion within a turbo_abort_scope: llama.cpp's single-threaded code (loading, making a context, reading
//     state);
//   * within a turbo_compute_scope any assertion but those of a running CPU graph, whose other threads would wait for
//     ever for the one that left.
#pragma once

#include <stdexcept>
#include <string>

// What a GPU reported. No memory is a state that passes; after anything else CUDA answers every call with that error.
class turbo_device_error : public std::runtime_error {
  public:
    turbo_device_error(const std::string & text, bool out_of_memory)
        : std::runtime_error(text), out_of_memory(out_of_memory) {}
    const bool out_of_memory;
};

// While one lives, a device error on this thread throws turbo_device_error. turbo_guard has one.
class turbo_guard_scope {
  public:
    turbo_guard_scope();
    ~turbo_guard_scope();
    turbo_guard_scope(const turbo_guard_scope &) = delete;
    turbo_guard_scope & operator=(const turbo_guard_scope &) = delete;
};

// While one lives, a failed assertion on this thread throws std::runtime_error with its text.
class turbo_abort_scope {
  public:
    turbo_abort_scope();
    ~turbo_abort_scope();
    turbo_abort_scope(const turbo_abort_scope &) = delete;
    turbo_abort_scope & operator=(const turbo_abort_scope &) = delete;
};

// The same around a computation.
class turbo_compute_scope {
  public:
    turbo_compute_scope();
    ~turbo_compute_scope();
    turbo_compute_scope(const turbo_compute_scope &) = delete;
    turbo_compute_scope & operator=(const turbo_compute_scope &) = delete;
};

// Whether a device reported an error that does not pass: nothing on it can be used or freed any more.
bool turbo_device_lost();

// Installs the abort hook; once.
void turbo_catch_aborts();
