// Functions of native/shim/turbo_profile.h (times of single operations).

typedef struct turbo_profile_row {
    char op[...];
    char tensor[...];
    int64_t start_ns;
    int64_t end_ns;
    int64_t bytes;
    ...;
} turbo_profile_row;

int32_t turbo_profile_start(turbo_context * ctx, int32_t capacity);
int32_t turbo_profile_stop(turbo_context * ctx);
int32_t turbo_profile_read(const turbo_context * ctx, turbo_profile_row * out, int32_t cap);
