// Copies host memory to a device without waiting for the stream. The driver does that for up to 64
// KB of pageable memory; larger copies go through page-locked stages.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <span>

#include "cuda/owned.h"
#include "flexc/result.h"

namespace flexc::runtime {

class StagedCopies {
  public:
    explicit StagedCopies(int device) : device_(device) {}
    StagedCopies(const StagedCopies&) = delete;
    StagedCopies& operator=(const StagedCopies&) = delete;
    ~StagedCopies();

    // Copies the pieces one after another; the caller may change them as soon as this returns. The
    // stream's context must be current.
    Result<void> copy(void* to, std::span<const std::span<const std::byte>> pieces, void* stream);

  private:
    struct Stage {
        cuda::OwnedHostMemory memory;
        std::size_t bytes = 0;
        cuda::OwnedEvent copied;
    };
    // Returns the oldest stage if its copy is done and it is large enough, otherwise a new one.
    Result<Stage> take(std::size_t bytes);

    const int device_;
    std::mutex mutex_;
    std::deque<Stage> stages_; // the oldest first
};

} // namespace flexc::runtime
