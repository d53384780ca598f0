#include "analysis/interval.h"

#include <algorithm>
#include <bit>
#include <initializer_list>

#include "ir/reference.h"

namespace flexc::analysis {

using ir::Op;

namespace {

// Wide enough for one product of two int64 values.
__extension__ using Wide = __int128;

Interval fit(Wide low, Wide high) {
    if (low < INT64_MIN || high > INT64_MAX) return kAny;
    return {static_cast<std::int64_t>(low), static_cast<std::int64_t>(high)};
}

Interval corners(std::initializer_list<Wide> values) {
    return fit(std::min(values), std::max(values));
}

Interval multiply(Interval x, Interval y) {
    return corners(
        {Wide(x.low) * y.low, Wide(x.low) * y.high, Wide(x.high) * y.low, Wide(x.high) * y.high});
}

Wide floor_quotient(Wide x, Wide y) {
    const Wide quotient = x / y;
    return quotient - ((x % y != 0 && (x < 0) != (y < 0)) ? 1 : 0);
}

Interval divide_nonzero(Interval x, Interval y) {
    return corners({floor_quotient(x.low, y.low), floor_quotient(x.low, y.high),
                    floor_quotient(x.high, y.low), floor_quotient(x.high, y.high)});
}

// Monotone on each side of a zero divisor, which itself gives 0.
Interval divide(Interval x, Interval y) {
    bool found = false;
    Interval result;
    auto include = [&](Interval more) {
        result = found ? hull(result, more) : more;
        found = true;
    };
    if (y.low < 0) include(divide_nonzero(x, {y.low, std::min<std::int64_t>(y.high, -1)}));
    if (y.high > 0) include(divide_nonzero(x, {std::max<std::int64_t>(y.low, 1), y.high}));
    if (contains(y, 0)) include({0, 0});
    return result;
}

Interval modulo(Interval x, Interval y) {
    if (y.low > 0 && x.low >= 0 && x.high < y.low) return x;
    Interval result = {y.low < 0 ? y.low + 1 : 0, y.high > 0 ? y.high - 1 : 0};
    if (y.low >= 0 && x.low >= 0) result.high = std::min(result.high, x.high);
    return result;
}

Interval absolute(Interval x) {
    if (x.low >= 0) return x;
    const Wide low = contains(x, 0) ? Wide(0) : -Wide(x.high);
    return fit(low, std::max(-Wide(x.low), Wide(x.high)));
}

// The smallest 2^k - 1 that is not below a non-negative value.
std::int64_t mask_above(std::int64_t value) {
    const auto width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(value)));
    return static_cast<std::int64_t>(width == 0 ? 0 : ~std::uint64_t{0} >> (64 - width));
}

Interval bitwise(Op op, Interval x, Interval y) {
    if (op == Op::iand && (x.low >= 0 || y.low >= 0)) {
        if (x.low < 0) return {0, y.high};
        return {0, y.low < 0 ? x.high : std::min(x.high, y.high)};
    }
    // No result needs more bits than the wider operand, sign included.
    const std::int64_t mask = std::max(
        {mask_above(x.low < 0 ? ~x.low : x.low), mask_above(x.high < 0 ? ~x.high : x.high),
         mask_above(y.low < 0 ? ~y.low : y.low), mask_above(y.high < 0 ? ~y.high : y.high)});
    if (x.low >= 0 && y.low >= 0) return {op == Op::ior ? std::max(x.low, y.low) : 0, mask};
    return {~mask, mask};
}

Interval shift_left(Interval x, Interval amount) {
    if (amount.low < 0 || amount.high > 62) return kAny;
    return multiply(x, {std::int64_t{1} << amount.low, std::int64_t{1} << amount.high});
}

Interval shift_right(Interval x, Interval amount) {
    auto shifted = [&](std::int64_t by) { return Interval{x.low >> by, x.high >> by}; };
    const Interval result = hull(shifted(std::clamp<std::int64_t>(amount.low, 0, 63)),
                                 shifted(std::clamp<std::int64_t>(amount.high, 0, 63)));
    return amount.low < 0 ? hull(result, shifted(63)) : result;
}

Interval power(Interval x, Interval y) {
    if (y.low < 0 || y.high > 63) return kAny;
    auto raised = [](Wide base, std::int64_t exponent) {
        Wide result = 1;
        // Once beyond int64 the interval is "any": stop before Wide overflows.
        for (; exponent > 0 && result <= INT64_MAX && result >= INT64_MIN; --exponent)
            result *= base;
        return result;
    };
    if (x.low >= 0) {
        const Wide low = x.low == 0 && y.high > 0 ? Wide(0) : raised(x.low, y.low);
        return fit(low, std::max(raised(x.high, y.high), raised(x.high, y.low)));
    }
    const Wide largest = std::max(-Wide(x.low), Wide(x.high));
    const Wide magnitude = raised(largest, y.high);
    return fit(-magnitude, magnitude);
}

} // namespace

Interval transfer(Op op, std::span<const Interval> operands) {
    const Interval x = operands.empty() ? kAny : operands[0];
    const Interval y = operands.size() > 1 ? operands[1] : kAny;
    switch (op) {
    case Op::iadd: return fit(Wide(x.low) + y.low, Wide(x.high) + y.high);
    case Op::isub: return fit(Wide(x.low) - y.high, Wide(x.high) - y.low);
    case Op::imul: return multiply(x, y);
    case Op::ifloordiv: return divide(x, y);
    case Op::imod: return modulo(x, y);
    case Op::ipow: return power(x, y);
    case Op::ineg: return fit(-Wide(x.high), -Wide(x.low));
    case Op::iabs: return absolute(x);
    case Op::isign: return {(x.low > 0) - (x.low < 0), (x.high > 0) - (x.high < 0)};
    case Op::imin: return {std::min(x.low, y.low), std::min(x.high, y.high)};
    case Op::imax: return {std::max(x.low, y.low), std::max(x.high, y.high)};
    case Op::iand:
    case Op::ior:
    case Op::ixor: return bitwise(op, x, y);
    case Op::inot: return {~x.high, ~x.low};
    case Op::ishl: return shift_left(x, y);
    case Op::ishr: return shift_right(x, y);
    case Op::iselect: return hull(y, operands[2]);
    case Op::bool_to_int: return {0, 1};
    default: return kAny;
    }
}

} // namespace flexc::analysis
