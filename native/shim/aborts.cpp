#include "aborts.h"

#include "device.h"
#include "log_ring.h"

#include "ggml-impl.h"
#include "ggml.h"

#include <atomic>
#include <cstdio>
#include <cstring>

namespace {

thread_local int guards = 0;
thread_local int abort_scopes = 0;
thread_local int compute_scopes = 0;
std::atomic<bool> device_lost{ false };

bool ends_with(const char * text, const char * end) {
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

// Backends log what happened and where before they abort with these words.
bool is_device_error(const char * message) {
    return ends_with(message, "CUDA error");
}

void on_abort(const char * message) {
    if (guards > 0 && is_device_error(message) && !turbo_device_records()) {
        const std::string reason = turbo_log_reason();
        const bool out_of_memory = turbo_is_memory_reason(reason);
        turbo_device_forget_error();
        if (!out_of_memory) {
            device_lost.store(true);
        }
        throw turbo_device_error(reason.empty() ? message : reason, out_of_memory);
    }
    if (abort_scopes > 0 || (compute_scopes > 0 && !strstr(message, "ggml-cpu"))) {
        throw std::runtime_error(message);
    }
    fprintf(stderr, "%s\n", message);
    ggml_print_backtrace();  // as without a hook; ggml aborts when this returns
}

}  // namespace

turbo_guard_scope::turbo_guard_scope() {
    if (guards++ == 0) {
        turbo_log_mark();
        turbo_device_watch();
    }
}

turbo_guard_scope::~turbo_guard_scope() {
    guards--;
}

turbo_abort_scope::turbo_abort_scope() {
    abort_scopes++;
}

turbo_abort_scope::~turbo_abort_scope() {
    abort_scopes--;
}

turbo_compute_scope::turbo_compute_scope() {
    compute_scopes++;
}

turbo_compute_scope::~turbo_compute_scope() {
    compute_scopes--;
}

bool turbo_device_lost() {
    return device_lost.load();
}

void turbo_catch_aborts() {
    ggml_set_abort_callback(on_abort);
}
