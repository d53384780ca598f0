// A tensor in memory of a chosen element type and layout.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/arguments.h"
#include "flexc/types.h"
#include "harness.h"

namespace flexc::test {

class Memory {
  public:
    Memory(const std::vector<std::int64_t>& shape, DType dtype, MemoryLayout layout);

    void set(const std::vector<double>& values); // row-major
    void set(const std::vector<std::int64_t>& values);
    std::vector<double> get() const;
    std::size_t count() const { return static_cast<std::size_t>(view_.elements()); }
    const TensorView& view() const { return view_; }
    TensorArgument argument() const; // of a rank 4 tensor

  private:
    char* place(std::size_t element) const;
    std::vector<char> bytes_;
    TensorView view_;
};

} // namespace flexc::test
