// A bounded ring of native log lines. Python empties it after its calls; nothing is ever printed.
#include "log_ring.h"

#include "turbo_shim.h"

#include "ggml.h"
#include "llama.h"
#include "log.h"

#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <string>

namespace {

constexpr size_t RING_LINES = 4096;

struct line {
    int level;
    std::string text;
};

struct log_ring {
    std::mutex mutex;
    std::deque<line> lines;
    std::string partial;  // text of the current line until its newline arrives
    int partial_level = GGML_LOG_LEVEL_INFO;
    int min_level = GGML_LOG_LEVEL_INFO;
    int64_t dropped = 0;
};

// Never destroyed: worker threads may log while the process exits.
log_ring & ring() {
    static log_ring * instance = new log_ring();
    return *instance;
}

thread_local std::string reason;
thread_local bool took_back = false;

void finish_line(log_ring & r) {
    if (r.partial_level == GGML_LOG_LEVEL_ERROR && reason.empty()) {
        reason = r.partial;  // the first error names the cause, later ones what failed because of it
    }
    if (r.lines.size() >= RING_LINES) {
        r.lines.pop_front();
        r.dropped++;
    }
    r.lines.push_back({ r.partial_level, std::move(r.partial) });
    r.partial.clear();
}

void on_log(enum ggml_log_level level, const char * text, void *) {
    // The CUDA backend tells in no other way that it freed scratch memory which recorded graphs may still name.
    if (level == GGML_LOG_LEVEL_DEBUG && strstr(text, "pool[") && strstr(text, "flushing")) {
        took_back = true;
    }
    log_ring & r = ring();
    std::lock_guard<std::mutex> lock(r.mutex);
    if (level != GGML_LOG_LEVEL_CONT) {
        r.partial_level = level == GGML_LOG_LEVEL_NONE ? GGML_LOG_LEVEL_INFO : level;
    }
    if (r.partial_level < r.min_level) {
        return;
    }
    for (const char * p = text; *p; p++) {
        if (*p == '\n') {
            finish_line(r);
        } else {
            r.partial.push_back(*p);
        }
    }
}

}  // namespace

void turbo_log_install() {
    llama_log_set(on_log, nullptr);
    common_log_set_verbosity_thold(-1);  // its own thread would print; the reasons arrive as exceptions
}

void turbo_log_mark() {
    reason.clear();
}

std::string turbo_log_reason() {
    return reason;
}

bool turbo_log_took_back() {
    const bool took = took_back;
    took_back = false;
    return took;
}

void turbo_log_level(int32_t level) {
    log_ring & r = ring();
    std::lock_guard<std::mutex> lock(r.mutex);
    r.min_level = level;
}

int32_t turbo_log_pop(char * buf, int32_t size) {
    log_ring & r = ring();
    std::lock_guard<std::mutex> lock(r.mutex);
    if (r.lines.empty() || !buf || size <= 0) {
        return 0;
    }
    const line & first = r.lines.front();
    snprintf(buf, (size_t) size, "%s", first.text.c_str());
    const int32_t level = first.level;
    r.lines.pop_front();
    return level;
}

int64_t turbo_log_dropped(void) {
    log_ring & r = ring();
    std::lock_guard<std::mutex> lock(r.mutex);
    return r.dropped;
}

bool turbo_is_memory_reason(const std::string & reason) {
    // whole phrases: a path may well contain "memory"
    for (const char * phrase : { "failed to allocate", "unable to allocate", "cannot allocate", "Cannot allocate",
                                 "insufficient memory", "out of memory", "bad_alloc", "alloc_tensor_range",
                                 "allocation failed",
                                 // cuBLAS's words when there is no memory for a handle
                                 "ALLOC_FAILED", "library was not initialized", "CUBLAS_STATUS_NOT_INITIALIZED" }) {
        if (reason.find(phrase) != std::string::npos) {
            return true;
        }
    }
    return false;
}
