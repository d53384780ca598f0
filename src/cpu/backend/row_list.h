// Rows in memory that need not be equally far apart.
#pragma once

#include <cstdint>

namespace flexc::cpu {

// Rows in the order of their keys: `count` of them, and kNext more that may be read next. They are
// `stride` bytes apart from `data` on, or at `offsets` from it, if these are not null.
struct RowList {
    static constexpr std::int64_t kNext = 96;
    const char* data;
    std::int64_t stride;
    const std::int64_t* offsets;
    std::int64_t count;

    const char* at(std::int64_t row) const {
        return data + (offsets != nullptr ? offsets[row] : row * stride);
    }
};

} // namespace flexc::cpu
