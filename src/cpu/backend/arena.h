// Places parts of a workspace: once to count bytes, and once to assign pointers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "support/amounts.h"

namespace flexc::cpu {

class Arena {
  public:
    explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

    template <typename T> T* take(std::int64_t count) {
        char* place = base_ == nullptr ? nullptr : base_ + used_;
        const std::size_t bytes = support::times(static_cast<std::size_t>(count), sizeof(T));
        used_ = support::plus(used_, support::rounded_up(bytes, 64));
        return reinterpret_cast<T*>(place);
    }
    std::size_t used() const { return used_; }

  private:
    char* base_;
    std::size_t used_ = 0;
};

} // namespace flexc::cpu
