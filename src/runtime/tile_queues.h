// Where the blocks of a launch agree on who computes which tile. Launches that may overlap must not
// share a queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "flexc/result.h"

namespace flexc::runtime {

class TileQueues {
  public:
    TileQueues() = default;
    TileQueues(const TileQueues&) = delete;
    TileQueues& operator=(const TileQueues&) = delete;
    ~TileQueues(); // in the context that allocate() ran in

    Result<void> allocate();

    // Launches on one stream follow each other and share a queue; one that is being captured into a
    // graph may run beside any other, and gets its own. Null when none is left: blocks then go by
    // their numbers.
    int* of(void* stream) const;

  private:
    static constexpr std::size_t kCount = 4096;
    int* take() const;

    void* memory_ = nullptr; // two integers each, zero between launches
    mutable std::mutex mutex_;
    mutable std::size_t used_ = 0;
    mutable std::map<std::uint64_t, int*> of_stream_;
};

} // namespace flexc::runtime
