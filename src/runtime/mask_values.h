// What a mask reads in a call, for evaluation on the host.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "ir/interp.h"
#include "runtime/state.h"

namespace flexc::runtime {

// Captured arrays stay where they are: host memory, which must outlive this.
class MaskValues {
  public:
    // views: one per buffer of the program; those that nothing reads may be empty.
    MaskValues(const ir::Program& program, const detail::PlanState& plan,
               std::span<const TensorView> views);

    // All values but the positions.
    ir::Environment of_head(std::int64_t b, std::int64_t h) const;

  private:
    Sizes sizes_;
    ir::Environment environment_;
    std::vector<std::unique_ptr<ir::BufferData>> arrays_;
};

} // namespace flexc::runtime
