// The log ring, as the other files of the shim see it.
#pragma once

#include <string>

void turbo_log_install();

// Text of the first ERROR line since the last call of turbo_log_mark() on this thread, or empty.
std::string turbo_log_reason();
void turbo_log_mark();

// Whether the CUDA backend freed scratch memory on this thread, to use it otherwise, since the last call.
bool turbo_log_took_back();

// Whether such a text says that an allocation failed.
bool turbo_is_memory_reason(const std::string & reason);
