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
    static Result<LengthReader> load(cuda::Module module, const plan::KernelConfig& config);
    // Allocates nothing: may be captured.
    Result<void> read(const LengthArrays& arrays, const SequenceRecords& to, void* stream) const;

  private:
    LengthReader(cuda::Module module, cuda::Function read, cuda::Function divide, unsigned threads)
        : module_(std::move(module)), read_(read), divide_(divide), threads_(threads) {}

    cuda::Module module_; // functions live as long as it does
    cuda::Function read_, divide_;
    unsigned threads_;
};

} // namespace flexc::runtime
