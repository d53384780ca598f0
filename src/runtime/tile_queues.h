// Counters from which the blocks of a persistent launch take their tiles. Launches that may overlap
// must not share a queue.
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

    // Returns the queue for a launch. Launches on one stream run one after another and share a
    // queue; a launch that is captured into a graph may overlap with any other, and gets its own.
    // Null if none is left: blocks then take tiles by block index.
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
