// Interval arithmetic for ranges: every function returns an interval that contains all results for
// operands inside their intervals. Operators without a function give no information.
//
// Masks of tiles use another implementation, common/interval.h, which explains why.
#pragma once

#include <cstdint>
#include <limits>
#include <span>

#include "analysis/range.h"
#include "ir/graph.h"

namespace flexc::analysis {

inline constexpr Interval kAny{};

constexpr Interval hull(Interval x, Interval y) {
    return {x.low < y.low ? x.low : y.low, x.high > y.high ? x.high : y.high};
}
constexpr bool is_any(Interval x) { return x.low == INT64_MIN && x.high == INT64_MAX; }
constexpr bool contains(Interval x, std::int64_t value) {
    return x.low <= value && value <= x.high;
}

// Integer operators, ignoring conditions. A result that may exceed int64 is "any".
Interval transfer(ir::Op op, std::span<const Interval> operands);

// Values of a real node in f32 arithmetic, including rounding and approximate functions. If zero is
// inside, a denormal number of either sign may stand for it.
struct RealInterval {
    double low = -std::numeric_limits<double>::infinity();
    double high = std::numeric_limits<double>::infinity();
    bool nan = true; // NaN is possible too
};
RealInterval hull(RealInterval x, RealInterval y);
RealInterval real_of(Interval x);
Interval truncated(RealInterval x);
RealInterval transfer(ir::Op op, std::span<const RealInterval> operands);

} // namespace flexc::analysis
