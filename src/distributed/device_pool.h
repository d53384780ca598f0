// Memory of one GPU for one rank's calls, which come one after the other.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "distributed/tensor_work.h"

namespace flexc::distributed {

// What is given back is for what the rank does later, in the order of its streams: nobody waits for
// it. Used by one thread at a time.
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
