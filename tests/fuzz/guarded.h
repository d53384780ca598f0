// Memory whose ends nobody may cross: the page on either side cannot be touched.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/mman.h>
#include <unistd.h>

#include "fuzz.h"

namespace flexc::fuzz {

class Guarded {
  public:
    enum class Edge { end, start }; // which of them lies at its page exactly

    // `alignment` is at most a page; up to that many bytes lie between the end and its page.
    Guarded(std::size_t bytes, std::size_t alignment, Edge edge)
        : pages_((bytes + page() - 1) / page() * page() + 2 * page()) {
        void* all = ::mmap(nullptr, pages_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        require(all != MAP_FAILED, "no memory for a tensor");
        base_ = static_cast<std::byte*>(all);
        ::mprotect(base_ + page(), pages_ - 2 * page(), PROT_READ | PROT_WRITE);
        const std::size_t used = (bytes + alignment - 1) / alignment * alignment;
        data_ = edge == Edge::start ? base_ + page() : base_ + pages_ - page() - used;
    }
    Guarded(Guarded&& other) noexcept
        : pages_(other.pages_), base_(other.base_), data_(other.data_) {
        other.base_ = nullptr;
    }
    Guarded& operator=(Guarded&&) = delete;
    ~Guarded() {
        if (base_ != nullptr) ::munmap(base_, pages_);
    }

    void* data() const { return data_; }
    // From now on a write is a fault too.
    void make_constant() { ::mprotect(base_ + page(), pages_ - 2 * page(), PROT_READ); }

  private:
    static std::size_t page() { return static_cast<std::size_t>(::sysconf(_SC_PAGESIZE)); }
    std::size_t pages_;
    std::byte* base_ = nullptr;
    std::byte* data_ = nullptr;
};

} // namespace flexc::fuzz
