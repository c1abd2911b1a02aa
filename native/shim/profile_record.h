// What a running profile gathers. Not installed.
#pragma once

#include "turbo_profile.h"

#include <cstddef>
#include <vector>

struct turbo_profile_record {
    size_t capacity = 0;
    int64_t start_ns = 0;
    int64_t node_start_ns = 0;
    std::vector<turbo_profile_row> rows;
};
