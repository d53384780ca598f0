// What a mask reads in a call, for evaluation on the host.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "flexc/types.h"
#include "ir/interp.h"

namespace flexc::runtime {

// Captured arrays stay where they are: host memory, which must outlive this.
class MaskValues {
  public:
    // One value for each size and param of the program, and one view for each buffer; those that
    // nothing reads may be empty.
    MaskValues(const ir::Program& program, std::vector<std::int64_t> sizes,
               std::span<const std::uint64_t> param_words, std::span<const TensorView> views);

    // All values but the positions.
    ir::Environment of_head(std::int64_t b, std::int64_t h) const;

  private:
    ir::Environment environment_;
    std::vector<std::unique_ptr<ir::BufferData>> arrays_;
};

} // namespace flexc::runtime
