// Floats that arithmetic treats badly, and the claim that is tested with them: whatever operands in
// their intervals give, on any backend, lies in the interval that analysis computes.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "analysis/interval.h"
#include "random_program.h"

namespace flexc::test {

struct HostilePoint {
    std::array<analysis::RealInterval, 3> intervals;
    std::array<float, 3> operands{};
};

// Both signs of these, infinity and NaN apart.
inline const std::vector<float>& hostile_sizes() {
    static const std::vector<float> kSizes = {
        0.0f,         1e-45f,   1e-40f,         0x1.fffffcp-127f,
        0x1p-126f,    2e-38f,   1e-30f,         1e-10f,
        1e-4f,        0.1f,     0.3f,           0.5f,
        0.999999f,    1.0f,     1.5f,           2.0f,
        2.5f,         7.25f,    20.0f,          88.72f,
        88.73f,       100.0f,   127.5f,         128.0f,
        1e3f,         1e6f,     8388609.0f,     16777216.0f,
        0x1p31f,      0x1p50f,  0x1.2p51f,      1e18f,
        0x1p63f,      1e20f,    0x1.f37c8ap95f, 1e30f,
        1e38f,        0x1p127f, 3.4e38f,        3.401e38f,
        3.4028234e38f};
    return kSizes;
}

class HostilePoints {
  public:
    explicit HostilePoints(std::uint64_t seed) : random_(seed) {}

    // Operands of an operator, and intervals that they lie in.
    HostilePoint next(int arity) {
        HostilePoint point;
        for (int i = 0; i < arity; ++i) {
            analysis::RealInterval& interval = point.intervals[static_cast<std::size_t>(i)];
            const float x = value(), y = random_.chance(30) ? x : value();
            interval = {std::min(x, y), std::max(x, y), random_.chance(20)};
            point.operands[static_cast<std::size_t>(i)] = inside(interval);
        }
        return point;
    }

  private:
    float value() {
        const float size = random_.chance(10) ? std::numeric_limits<float>::infinity()
                                              : random_.pick(hostile_sizes());
        return random_.chance(50) ? size : -size;
    }
    float inside(const analysis::RealInterval& interval) {
        if (interval.nan && random_.chance(30)) return std::numeric_limits<float>::quiet_NaN();
        for (int i = 0; i < 8; ++i)
            if (const float x = value(); x >= interval.low && x <= interval.high) return x;
        return static_cast<float>(random_.chance(50) ? interval.low : interval.high);
    }

    Random random_;
};

inline bool contains(const analysis::RealInterval& interval, float x) {
    if (std::isnan(x)) return interval.nan;
    // A denormal may stand for zero.
    const double value =
        std::fabs(x) < 0x1p-126f && interval.low <= 0 && interval.high >= 0 ? 0 : x;
    return interval.low <= value && value <= interval.high;
}

// Operators over reals alone.
inline bool is_of_reals(const ir::OpInfo& info) {
    return !info.is_leaf() && info.signature.back() == 'f' &&
           info.signature.substr(0, info.signature.size() - 2).find_first_not_of('f') ==
               std::string_view::npos;
}

inline void check_contained(ir::Op op, const HostilePoint& point, float result) {
    const auto arity = static_cast<std::size_t>(ir::info(op).arity());
    const analysis::RealInterval interval =
        analysis::transfer(op, std::span(point.intervals).first(arity));
    if (contains(interval, result)) return;
    FAIL_CHECK(ir::info(op).name << "(" << point.operands[0] << ", " << point.operands[1] << ", "
                                 << point.operands[2] << ") = " << result << " is outside ["
                                 << interval.low << ", " << interval.high << "]"
                                 << (interval.nan ? " or NaN" : "") << "; operands are in ["
                                 << point.intervals[0].low << ", " << point.intervals[0].high
                                 << "], [" << point.intervals[1].low << ", "
                                 << point.intervals[1].high << "], [" << point.intervals[2].low
                                 << ", " << point.intervals[2].high << "]");
}

} // namespace flexc::test
