#include <algorithm>
#include <cmath>

#include "analysis/interval.h"
#include "ir/reference.h"

namespace flexc::analysis {

using ir::Op;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr RealInterval kUnknown{};

// Relative errors of results: rounding and approximate division; elementary functions; the fast
// hyperbolic functions of a GPU.
constexpr double kRounding = 1e-6, kFunction = 1e-5, kFastFunction = 2e-3;

// Just below the largest f32: larger results may be that number or infinite.
constexpr double kGreatest = 3.4e38;
// The CPU flushes f32 operands and results below this to zero.
constexpr double kLeastNormal = 0x1p-126;

RealInterval widen(RealInterval x, double slack) {
    const auto distance = [&](double value) {
        return std::fabs(value) * slack + slack * (slack > kRounding ? 1 : 1e-30);
    };
    if (std::isnan(x.low) || std::isnan(x.high)) return kUnknown;
    if (!std::isinf(x.low)) {
        x.low = std::min(x.low - distance(x.low), kGreatest);
        if (x.low < -kGreatest) x.low = -kInfinity;
    }
    if (!std::isinf(x.high)) {
        x.high = std::max(x.high + distance(x.high), -kGreatest);
        if (x.high > kGreatest) x.high = kInfinity;
    }
    return x;
}

// The operand, with denormal numbers possibly flushed to zero.
RealInterval flushed(RealInterval x) {
    if (x.low > 0 && x.low < kLeastNormal) x.low = 0;
    if (x.high < 0 && x.high > -kLeastNormal) x.high = 0;
    return x;
}

bool finite(RealInterval x) { return std::isfinite(x.low) && std::isfinite(x.high); }

RealInterval corners(std::initializer_list<double> values, bool nan) {
    return widen({std::min(values), std::max(values), nan}, kRounding);
}

RealInterval multiply(RealInterval x, RealInterval y) {
    if (!finite(x) || !finite(y)) return kUnknown;
    return corners({x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high},
                   x.nan || y.nan);
}

RealInterval add(RealInterval x, RealInterval y) {
    if (!finite(x) || !finite(y)) return kUnknown;
    return corners({x.low + y.low, x.high + y.high}, x.nan || y.nan);
}

RealInterval divide(RealInterval x, RealInterval y) {
    if (!finite(x) || !finite(y) || (y.low <= 0 && y.high >= 0)) return kUnknown;
    return corners({x.low / y.low, x.low / y.high, x.high / y.low, x.high / y.high},
                   x.nan || y.nan);
}

RealInterval negate(RealInterval x) { return {-x.high, -x.low, x.nan}; }

template <typename Function>
RealInterval increasing(RealInterval x, Function function, double slack) {
    return widen({function(x.low), function(x.high), x.nan}, slack);
}

RealInterval within(RealInterval x, double low, double high) {
    return {std::clamp(x.low, low, high), std::clamp(x.high, low, high), x.nan};
}

RealInterval unary(Op op, RealInterval x) {
    namespace reference = ir::reference;
    switch (op) {
    case Op::fneg: return negate(x);
    case Op::fabs: {
        const double magnitude = std::max(std::fabs(x.low), std::fabs(x.high));
        const bool spans_zero = x.low <= 0 && x.high >= 0;
        return {spans_zero ? 0 : std::min(std::fabs(x.low), std::fabs(x.high)), magnitude, x.nan};
    }
    case Op::fsign: {
        const RealInterval signs = {reference::sign(x.low), reference::sign(x.high), false};
        return x.nan ? hull(signs, {0, 0, false}) : signs; // that of NaN is 0
    }
    case Op::ffloor: return increasing(x, [](double v) { return std::floor(v); }, 0);
    case Op::fceil: return increasing(x, [](double v) { return std::ceil(v); }, 0);
    case Op::fround: return increasing(x, [](double v) { return reference::round_even(v); }, 0);
    case Op::ftrunc: return increasing(x, [](double v) { return std::trunc(v); }, 0);
    case Op::exp: return increasing(x, [](double v) { return std::exp(v); }, kFunction);
    case Op::exp2: return increasing(x, [](double v) { return std::exp2(v); }, kFunction);
    case Op::log:
        if (x.low < 0) return kUnknown;
        return increasing(x, [](double v) { return std::log(v); }, kFunction);
    case Op::log2:
        if (x.low < 0) return kUnknown;
        return increasing(x, [](double v) { return std::log2(v); }, kFunction);
    case Op::log1p:
        if (x.low < -1) return kUnknown;
        return increasing(x, [](double v) { return std::log1p(v); }, kFunction);
    case Op::sqrt:
        if (x.low < 0) return kUnknown;
        return increasing(x, [](double v) { return std::sqrt(v); }, kRounding);
    case Op::tanh:
        return within(increasing(x, [](double v) { return std::tanh(v); }, kFastFunction), -1, 1);
    case Op::sigmoid:
        return within(
            increasing(x, [](double v) { return reference::sigmoid(v); }, kFastFunction), 0, 1);
    case Op::sin:
    case Op::cos: return widen({-1, 1, x.nan || !finite(x)}, kFunction);
    case Op::erf: return widen({-1, 1, x.nan}, kFunction);
    default: return kUnknown;
    }
}

} // namespace

RealInterval hull(RealInterval x, RealInterval y) {
    return {std::min(x.low, y.low), std::max(x.high, y.high), x.nan || y.nan};
}

RealInterval real_of(Interval x) {
    return widen({static_cast<double>(x.low), static_cast<double>(x.high), false}, kRounding);
}

Interval truncated(RealInterval x) {
    const Interval result = {ir::reference::truncate_to_int(x.low).value,
                             ir::reference::truncate_to_int(x.high).value};
    return x.nan ? hull(result, {0, 0}) : result;
}

RealInterval transfer(Op op, std::span<const RealInterval> operands) {
    if (operands.size() == 1) return unary(op, flushed(operands[0]));
    const RealInterval x = flushed(operands[0]), y = flushed(operands[1]);
    const bool nan = x.nan || y.nan;
    switch (op) {
    case Op::fadd: return add(x, y);
    case Op::fsub: return add(x, negate(y));
    case Op::fmul: return multiply(x, y);
    case Op::fdiv: return divide(x, y);
    case Op::fma: return add(multiply(x, y), flushed(operands[2]));
    case Op::fmin: return {std::min(x.low, y.low), std::min(x.high, y.high), nan};
    case Op::fmax: return {std::max(x.low, y.low), std::max(x.high, y.high), nan};
    case Op::fclamp: {
        const RealInterval z = flushed(operands[2]);
        return {std::min(std::max(x.low, y.low), z.low), std::min(std::max(x.high, y.high), z.high),
                nan || z.nan};
    }
    default: return kUnknown;
    }
}

} // namespace flexc::analysis
