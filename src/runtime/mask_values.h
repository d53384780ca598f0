// The values that a mask reads in a call, for evaluation on the host.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "flexc/types.h"
#include "ir/interp.h"
#include "passes/mod.h"
#include "runtime/state.h"

namespace flexc::runtime {

// Refers to captured arrays in host memory, which must outlive this object.
class MaskValues {
  public:
    // `sizes`, `param_words` and `views` have an entry for each size, param and buffer of the
    // program; views that the mask does not read may be empty.
    MaskValues(const ir::Program& program, std::vector<std::int64_t> sizes,
               std::span<const std::uint64_t> param_words, std::span<const TensorView> views);

    // The environment of a head: all values except the positions.
    ir::Environment of_head(std::int64_t b, std::int64_t h) const;

  private:
    ir::Environment environment_;
    std::vector<std::unique_ptr<ir::BufferData>> arrays_;
};

// Returns how many keys a query may see, for the most of a plan's queries: what the bounds of the
// mask's band leave that sizes and params determine. Reads no buffer.
std::int64_t visible_keys(const passes::Mod& mod, const detail::PlanState& plan);

} // namespace flexc::runtime
