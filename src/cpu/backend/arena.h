// Parts of a workspace, laid out once to count bytes and once to hand out pointers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexc::cpu {

class Arena {
  public:
    explicit Arena(void* base) : base_(static_cast<char*>(base)) {}

    template <typename T> T* take(std::int64_t count) {
        char* place = base_ == nullptr ? nullptr : base_ + used_;
        used_ += (static_cast<std::size_t>(count) * sizeof(T) + 63) / 64 * 64;
        return reinterpret_cast<T*>(place);
    }
    std::size_t used() const { return used_; }

  private:
    char* base_;
    std::size_t used_ = 0;
};

} // namespace flexc::cpu
