// What is asked of the CUDA backend around a device error. Plain C++: its callers are compiled without CUDA's headers.

#pragma once

struct ggml_backend;

// A computation may begin on this thread: the stream of an earlier one is forgotten.
void turbo_cuda_watch();

// Whether the stream that this thread last launched on is recording a graph.
bool turbo_cuda_records();

// Takes back CUDA's last error, and the notes between a write and its attention that was not reached.
void turbo_cuda_forget_error();

// Drops the recorded graphs of a backend, if it is a CUDA one, when all it was given is done.
void turbo_cuda_drop_graphs(ggml_backend *backend);
