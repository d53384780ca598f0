// Ranges of integers: for bounds checks and the choice between 32 and 64 bits.
#pragma once

#include <cstdint>
#include <vector>

#include "ir/program.h"

namespace flexc::analysis {

// Limit on sequence, batch and head counts, so that sums and differences of two positions fit into
// 32 bits. Every size, including extents of buffers, is at least 1; integer parameters are within
// 2^53. All are checked at plan time.
inline constexpr std::int64_t kMaxLength = std::int64_t{1} << 30;
// Limit on rows of packed tensors and of caches.
inline constexpr std::int64_t kMaxRows = std::int64_t{1} << 48;

// Closed; saturated at the ends of int64, which then stand for "any".
struct Interval {
    std::int64_t low = INT64_MIN;
    std::int64_t high = INT64_MAX;
    bool fits_32_bits() const { return low >= INT32_MIN && high <= INT32_MAX; }
};

struct Ranges {
    std::vector<Interval> of_node; // integer nodes; others hold "any"
    // Whether the node may be computed in 32 bits: it and its operands fit. For a read only its
    // value counts.
    std::vector<bool> narrow;
    // For real nodes: an upper bound of |value|, NaN excepted; infinity if unknown.
    std::vector<double> magnitude;
    std::vector<bool> finite; // real nodes that can be neither infinite nor NaN
    // For integer comparisons, min and max: range of first operand - second operand.
    std::vector<Interval> difference;
    // For each read, per index: whether it is proven to be inside the buffer (empty for other
    // nodes). A proof never relies on arithmetic with numbers that a caller chooses (score,
    // elements of buffers, parameters): a wrong proof would read foreign memory, and a check costs
    // next to nothing.
    std::vector<std::vector<bool>> in_range;
};

Ranges ranges(const ir::Program& program);

} // namespace flexc::analysis
