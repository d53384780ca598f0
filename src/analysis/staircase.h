// Integers of one position that repeat: the same steps in each period, starting from where the last
// one ended. Sums, multiples, quotients and remainders by constants are of this form.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "ir/graph.h"

namespace flexc::analysis {

class Staircase {
  public:
    // For a value of this position (q_idx or kv_idx) and constants alone; nothing for others, or if
    // the period is too long.
    static std::optional<Staircase> of(const ir::Graph& graph, ir::NodeId id, ir::Op position);

    std::int64_t period() const { return static_cast<std::int64_t>(values_.size()); }
    std::int64_t at(std::int64_t position) const;
    // Returns its increase from `from` to `to` positions after a multiple of `step`, if it is the
    // same for all multiples.
    std::optional<std::int64_t> gain(std::int64_t step, std::int64_t from, std::int64_t to) const;

  private:
    std::vector<std::int64_t> values_; // of positions from 0 on
    std::int64_t gain_ = 0;            // from a period to the next
};

} // namespace flexc::analysis
