// Bytes of saved state: a writer that only counts when it has no target, and a reader that never steps over the end.
#pragma once

#include "ggml-backend.h"
#include "llama-io.h"

#include <cstring>
#include <stdexcept>

class turbo_state_writer : public llama_io_write_i {
public:
    turbo_state_writer(uint8_t * dst, size_t size) : dst(dst), size(size) {}

    void write(const void * src, size_t n) override {
        uint8_t * to = take(n);
        if (to && n > 0) {  // an empty list has no address, which memcpy does not take
            memcpy(to, src, n);
        }
    }

    void write_tensor(ggml_tensor * tensor, size_t offset, size_t n) override {
        if (uint8_t * to = take(n)) {
            ggml_backend_tensor_get(tensor, to, offset, n);
        }
    }

    template <typename T> void value(const T & v) { write(&v, sizeof(v)); }

    size_t n_bytes() override { return at; }

private:
    uint8_t * take(size_t n) {
        uint8_t * to = dst ? dst + at : nullptr;
        if (dst && n > size - at) {
            throw std::runtime_error("the state grew while it was written");
        }
        at += n;
        return to;
    }

    uint8_t * dst;  // null: only count
    size_t size;
    size_t at = 0;
};

class turbo_state_reader : public llama_io_read_i {
public:
    turbo_state_reader(const uint8_t * src, size_t size) : src(src), size(size) {}

    void read(void * dst, size_t n) override {
        const uint8_t * from = take(n);
        if (n > 0) {
            memcpy(dst, from, n);
        }
    }

    void read_tensor(ggml_tensor * tensor, size_t offset, size_t n) override {
        ggml_backend_tensor_set(tensor, take(n), offset, n);
    }

    template <typename T> T value() {
        T v;
        read(&v, sizeof(v));
        return v;
    }

    const uint8_t * take(size_t n) {
        if (n > size - at) {
            throw std::runtime_error("the saved state ends too early");
        }
        at += n;
        return src + at - n;
    }

    size_t left() const { return size - at; }
    size_t n_bytes() override { return at; }

private:
    const uint8_t * src;
    size_t size;
    size_t at = 0;
};
