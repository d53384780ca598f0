// f32 sums of a gradient, zero at first.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flexc/kernel.h"

namespace flexc::distributed {

class Sums {
  public:
    explicit Sums(std::vector<std::int64_t> shape)
        : view_(TensorView::contiguous(nullptr, DType::f32, shape)),
          values_(static_cast<std::size_t>(view_.elements())) {
        view_.data = values_.data();
    }
    const TensorView& view() const { return view_; }
    std::span<float> values() { return values_; }

  private:
    TensorView view_;
    std::vector<float> values_;
};

} // namespace flexc::distributed
