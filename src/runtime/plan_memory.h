// Device memory of plans: block masks, and records of requests. The block that a plan gives back is
// kept for the next plan, as allocating takes longer than filling a block mask.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>

#include "flexc/result.h"

namespace flexc::runtime {

class PlanMemory : public std::enable_shared_from_this<PlanMemory> {
  public:
    explicit PlanMemory(int device) : device_(device) {}
    PlanMemory(const PlanMemory&) = delete;
    PlanMemory& operator=(const PlanMemory&) = delete;
    ~PlanMemory();

    // Allocates on the device. The memory is given back when the last owner releases it and the
    // device has finished its work.
    Result<std::shared_ptr<void>> allocate(std::size_t bytes);

  private:
    struct Block {
        void* data = nullptr;
        std::size_t bytes = 0;
    };
    Block take(std::size_t bytes);
    void give_back(Block block);

    const int device_;
    std::mutex mutex_;
    Block kept_;
};

} // namespace flexc::runtime
