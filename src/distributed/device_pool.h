// GPU memory for the calls of one rank, which run one after another.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "distributed/tensor_work.h"

namespace flexc::distributed {

// Blocks that are given back are used for later work of the rank in stream order, without waiting.
// Used by one thread at a time.
class DevicePool : public std::enable_shared_from_this<DevicePool> {
  public:
    explicit DevicePool(int device) : device_(device) {}
    DevicePool(const DevicePool&) = delete;
    DevicePool& operator=(const DevicePool&) = delete;
    ~DevicePool();

    Result<Bytes> allocate(std::size_t bytes);

  private:
    struct Block {
        void* data = nullptr;
        std::size_t bytes = 0;
    };
    Result<Block> take(std::size_t bytes);

    const int device_;
    std::size_t count_ = 0; // of all blocks
    std::vector<Block> free_;
};

} // namespace flexc::distributed
