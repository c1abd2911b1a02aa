// What the shim asks of the GPU backend when a device reported an error. Not installed. All of it does nothing in a build
// without CUDA.
#pragma once

#include <string>

struct llama_context;

// A guarded call begins on this thread: what an earlier one launched is forgotten.
void turbo_device_watch();
// Whether this thread is recording a CUDA graph.
bool turbo_device_records();
// Takes back the error that CUDA keeps for the next call that asks.
void turbo_device_forget_error();

// Drops the CUDA graphs a context recorded: they hold addresses of scratch memory, which the backend's pool gives back when
// memory is short. Waits for what runs. May throw turbo_device_error.
void turbo_device_drop_graphs(llama_context & ctx);
// Whether the pool gave scratch memory back on this thread since the last call.
bool turbo_device_took_back();

// "12 MiB free on CUDA0", for messages; empty without a GPU that answers.
std::string turbo_device_free_text();
