// Tensors of a call: those that are read cannot be written, and nobody gets beyond their ends.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flexc/kernel.h"
#include "guarded.h"

namespace flexc::fuzz {

// A usual number, or, if it is to be hostile, at times one that kernels do not like.
double real(Random& random, bool is_hostile);

class Tensors {
  public:
    Tensors(Random& random, bool is_hostile) : random_(random), is_hostile_(is_hostile) {}

    TensorView input(DType dtype, const std::vector<std::int64_t>& shape) {
        return make(dtype, shape, true);
    }
    TensorView output(DType dtype, const std::vector<std::int64_t>& shape) {
        return make(dtype, shape, false);
    }
    TensorView copy(std::span<const std::int32_t> numbers);
    Workspace workspace(std::size_t bytes);

  private:
    TensorView make(DType dtype, const std::vector<std::int64_t>& shape, bool constant);

    Random& random_;
    bool is_hostile_;
    std::vector<Guarded> memory_;
};

} // namespace flexc::fuzz
