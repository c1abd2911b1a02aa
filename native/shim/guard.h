// Status and last-error plumbing shared by the shim's files. Not installed.
#pragma once

#include "aborts.h"
#include "turbo_shim.h"

#include <exception>
#include <new>
#include <string>

// Stores the text as the calling thread's last error and returns the status, so that a check is one line.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
int32_t turbo_fail(int32_t status, const char * format, ...);

// Copies text into a fixed-size field, always terminated.
void turbo_copy_name(char * dst, size_t size, const char * text);

// Copies text to a caller's buffer (cut to size - 1 bytes, terminated) and returns its full length.
int32_t turbo_copy_text(const std::string & text, char * buf, int32_t size);

// Hands a string to the caller, who releases it with turbo_string_free.
int32_t turbo_give_text(const std::string & text, char ** out);

// Runs f, which returns a status; any exception becomes a status with its message.
template <typename F> int32_t turbo_guard(const char * what, F && f) noexcept {
    const turbo_guard_scope scope;
    try {
        return f();
    } catch (const turbo_device_error & error) {
        return turbo_fail(error.out_of_memory ? TURBO_E_MEMORY : TURBO_E_DECODE, "%s: %s", what, error.what());
    } catch (const std::bad_alloc &) {
        return turbo_fail(TURBO_E_MEMORY, "%s: out of memory", what);
    } catch (const std::exception & error) {
        return turbo_fail(TURBO_E_INTERNAL, "%s: %s", what, error.what());
    } catch (...) {
        return turbo_fail(TURBO_E_INTERNAL, "%s: unknown exception", what);
    }
}
