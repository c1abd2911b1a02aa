// Times of single graph operations of a context (CPU, or any backend when each operation is waited for).
// Same rules as turbo_shim.h.
#ifndef TURBO_PROFILE_H
#define TURBO_PROFILE_H

#include "turbo_shim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct turbo_profile_row {
    char    op[TURBO_NAME_MAX];      // operator, as MUL_MAT
    char    tensor[TURBO_NAME_MAX];  // name of the result
    int64_t start_ns;                // since turbo_profile_start
    int64_t end_ns;
    int64_t bytes;                   // read and written: sources and result
} turbo_profile_row;

// Record every operation from now on, at most `capacity` rows (later ones are dropped). Operations then run one by one,
// so a step takes longer than without.
TURBO_API int32_t turbo_profile_start(turbo_context * ctx, int32_t capacity);
TURBO_API int32_t turbo_profile_stop(turbo_context * ctx);

// Rows recorded last: fills at most cap, returns how many there are.
TURBO_API int32_t turbo_profile_read(const turbo_context * ctx, turbo_profile_row * out, int32_t cap);

#ifdef __cplusplus
}
#endif

#endif  // TURBO_PROFILE_H
