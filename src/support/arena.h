// Places parts of a piece of memory one after another: once to count bytes, and once to assign
// pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "support/amounts.h"

namespace flexc::support {

class Arena {
  public:
    static constexpr std::size_t kCacheLine = 64;

    // base: null to count only. Each part begins at a multiple of `alignment`, a power of two.
    explicit Arena(void* base, std::size_t alignment = kCacheLine)
        : base_(static_cast<char*>(base)), alignment_(alignment) {}

    template <typename T> T* take(std::int64_t count) {
        char* const place = base_ == nullptr ? nullptr : base_ + used_;
        const std::size_t bytes = times(static_cast<std::size_t>(count), sizeof(T));
        used_ = plus(used_, rounded_up(bytes, alignment_));
        return reinterpret_cast<T*>(place);
    }
    std::size_t used() const { return used_; }

  private:
    char* base_;
    std::size_t alignment_, used_ = 0;
};

} // namespace flexc::support
