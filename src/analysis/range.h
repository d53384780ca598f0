// What values an integer can take: for bounds checks and the choice between 32 and 64 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace flexc::analysis {

// No sequence, batch or head count may reach this, so that sums and differences of two positions
// fit in 32 bits. Every size, extents of buffers too, is at least 1; integer parameters are within
// 2^53. All are checked at plan time.
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;
// Rows of packed tensors and of caches are below this.
inline constexpr std::int64_t kMaxRows = std::int64_t{1} << 48;

// Closed; saturated at the ends of int64, which then stand for "any".
struct Interval {
    std::int64_t low = INT64_MIN;
    std::int64_t high = INT64_MAX;
    bool fits_32_bits() const { return low >= INT32_MIN && high <= INT32_MAX; }
};

struct Ranges {
    std::vector<Interval> of_node; // integer nodes; others hold "any"
    // The node may be computed in 32 bits: it and its operands fit. Of a read only its value
    // counts.
    std::vector<bool> narrow;
    // Of real nodes: what no |value| exceeds but NaN; infinity where nothing is known.
    std::vector<double> magnitude;
    std::vector<bool> finite; // real nodes that can be neither infinite nor NaN
    // Of integer comparisons, min and max: first operand - second operand.
    std::vector<Interval> difference;
    // read node -> per index, whether it is proven inside the buffer (empty for other nodes). A
    // proof never rests on what arithmetic makes of numbers that a caller chooses: score, elements
    // of buffers, parameters. A wrong one would read memory of others, and a check of such an index
    // costs next to nothing.
    std::vector<std::vector<bool>> in_range;
};

Ranges ranges(const ir::Program& program);

} // namespace flexc::analysis
