// Launches that make records of requests from lengths in the device's memory.
#pragma once

#include <utility>

#include "common/length_arrays.h"
#include "cuda/driver.h"
#include "flexc/result.h"
#include "plan/kernel.h"

namespace flexc::runtime {

class LengthReader {
  public:
    // starts_early: the second launch uses programmatic dependent launch.
    static Result<LengthReader> load(cuda::Module module, const plan::KernelConfig& config,
                                     bool starts_early);
    // Allocates nothing, so it may be captured in a graph.
    Result<void> read(const LengthArrays& arrays, const SequenceRecords& to, void* stream) const;

  private:
    LengthReader(cuda::Module module, cuda::Function read, cuda::Function divide, unsigned threads,
                 bool starts_early)
        : module_(std::move(module)), read_(read), divide_(divide), threads_(threads),
          starts_early_(starts_early) {}

    cuda::Module module_; // functions live as long as it does
    cuda::Function read_, divide_;
    unsigned threads_;
    bool starts_early_;
};

} // namespace flexc::runtime
