// The rows of each request along an axis: queries, or keys in order.
#pragma once

#include <cstdint>

#include "flexc/options.h"
#include "runtime/length_checks.h"

namespace flexc::runtime {

struct RequestAxis {
    const char* cu_name;
    const char* used_name;
    const char* what;
    const char* size_name;
    Layout layout;
    Numbers cu_seqlens, used;
    std::int64_t most;
};
RequestAxis query_axis(Layout layout, const Sizes& sizes, const Lengths& lengths);
RequestAxis key_axis(Layout layout, const Sizes& sizes, const Lengths& lengths);

// Checks which arrays are given and how long they are, without reading their elements.
Result<void> check_axis(const RequestAxis& axis, std::int64_t batch);

struct RequestRows {
    std::int64_t row = 0, rows = 0, used = 0;
};
Result<RequestRows> rows_of(const RequestAxis& axis, std::size_t request);

} // namespace flexc::runtime
