// Integers of one position that repeat: the same steps in each period, from where the last one
// ended. Sums, multiples, quotients and remainders by constants are such.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace flexc::analysis {

class Staircase {
  public:
    // Of a value of this position (q_idx or kv_idx) and constants alone; nothing for others, and
    // where a period is longer than any that programs need.
    static std::optional<Staircase> of(const ir::Graph& graph, ir::NodeId id, ir::Op position);

    std::int64_t period() const { return static_cast<std::int64_t>(values_.size()); }
    std::int64_t at(std::int64_t position) const;
    // What it gains from `from` to `to` positions behind a multiple of `step`, where that is the
    // same for all of these.
    std::optional<std::int64_t> gain(std::int64_t step, std::int64_t from, std::int64_t to) const;

  private:
    std::vector<std::int64_t> values_; // of positions from 0 on
    std::int64_t gain_ = 0;            // from a period to the next
};

} // namespace flexc::analysis
