// Last error of each thread, and the small text helpers that every other file uses.
#include "guard.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr size_t ERROR_BYTES = 1024;

thread_local char last_error[ERROR_BYTES] = "";

}  // namespace

int32_t turbo_fail(int32_t status, const char * format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof(last_error), format, args);
    va_end(args);
    return status;
}

void turbo_copy_name(char * dst, size_t size, const char * text) {
    snprintf(dst, size, "%s", text ? text : "");
}

int32_t turbo_copy_text(const std::string & text, char * buf, int32_t size) {
    if (buf && size > 0) {
        const size_t n = std::min(text.size(), (size_t) size - 1);
        memcpy(buf, text.data(), n);
        buf[n] = '\0';
    }
    return (int32_t) text.size();
}

int32_t turbo_give_text(const std::string & text, char ** out) {
    char * copy = static_cast<char *>(malloc(text.size() + 1));
    if (!copy) {
        return turbo_fail(TURBO_E_MEMORY, "no memory for a text of %zu bytes", text.size());
    }
    memcpy(copy, text.c_str(), text.size() + 1);
    *out = copy;
    return TURBO_OK;
}

int32_t turbo_abi(void) {
    return TURBO_ABI;
}

const char * turbo_last_error(void) {
    return last_error;
}

void turbo_string_free(char * text) {
    free(text);
}
