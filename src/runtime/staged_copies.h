// Copies of host memory to a device that wait for nothing. Of pageable memory the driver takes 64
// KB at most without waiting for the stream, so that more goes through page-locked stages.
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

    // The pieces one behind the other, which the caller may change as soon as it returns. The
    // context of the stream is current.
    Result<void> copy(void* to, std::span<const std::span<const std::byte>> pieces, void* stream);

  private:
    struct Stage {
        cuda::OwnedHostMemory memory;
        std::size_t bytes = 0;
        cuda::OwnedEvent copied;
    };
    // The oldest, when its copy is done; a new one where it is not, or is too small.
    Result<Stage> take(std::size_t bytes);

    const int device_;
    std::mutex mutex_;
    std::deque<Stage> stages_; // the oldest first
};

} // namespace flexc::runtime
