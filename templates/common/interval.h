// Interval arithmetic: the values that an expression may take over the elements of a tile. There is
// a function, named like the operator, for each operator that masks use between a query and a key;
// the results of all others are unknown. Included by device and host code.
//
// src/analysis/interval.h is a separate implementation for ranges of integers, which needs the
// exact ends of int64 and infinite ends; a device has neither 128-bit integers nor a spare flag for
// NaN.
//
// Every function returns an interval that contains all results for operands inside their intervals,
// rounding of f32 included. Booleans are 0 or 1: low = 1 means "everywhere", high = 0 means
// "nowhere".
#pragma once

#include "common/host_device.h"

#ifndef __CUDACC__
#include <cmath>
#endif

namespace interval {

struct Fact {
    double low, high;
};

// An end beyond all values means that it is unknown. A real with such an end may also be NaN.
constexpr double kFar = 1e300;
// Integers up to here are exact, and no other one is rounded to one of them.
constexpr double kMostExact = 9007199254740991.0;

FLEXC_SHARED Fact anything() { return {-kFar, kFar}; }
FLEXC_SHARED Fact any_truth() { return {0, 1}; }
FLEXC_SHARED bool is_finite(Fact x) { return x.low > -kFar && x.high < kFar; }
FLEXC_SHARED bool is_single(Fact x) { return x.low == x.high && is_finite(x); }
FLEXC_SHARED double smaller(double x, double y) { return x < y ? x : y; }
FLEXC_SHARED double larger(double x, double y) { return x < y ? y : x; }
FLEXC_SHARED Fact hull(Fact x, Fact y) { return {smaller(x.low, y.low), larger(x.high, y.high)}; }

// --- single values ------------------------------------------------------------------------------

FLEXC_SHARED Fact of(bool x) { return {x ? 1.0 : 0.0, x ? 1.0 : 0.0}; }
FLEXC_SHARED Fact of(int x) { return {double(x), double(x)}; }
FLEXC_SHARED Fact of(long long x) {
    const double value = double(x);
    if (value > kMostExact) return {kMostExact, kFar};
    if (value < -kMostExact) return {-kFar, -kMostExact};
    return {value, value};
}
FLEXC_SHARED Fact of(float x) {
    if (!(x > -3.4e38f && x < 3.4e38f)) return anything();
    return {double(x), double(x)};
}

// --- integers -----------------------------------------------------------------------------------

// Returns the interval if both ends are exact integers, otherwise "unknown".
FLEXC_SHARED Fact exact(double low, double high) {
    return low >= -kMostExact && high <= kMostExact ? Fact{low, high} : anything();
}
FLEXC_SHARED Fact corners(double a, double b, double c, double d) {
    return {smaller(smaller(a, b), smaller(c, d)), larger(larger(a, b), larger(c, d))};
}
FLEXC_SHARED Fact iadd(Fact x, Fact y) { return exact(x.low + y.low, x.high + y.high); }
FLEXC_SHARED Fact isub(Fact x, Fact y) { return exact(x.low - y.high, x.high - y.low); }
FLEXC_SHARED Fact imul(Fact x, Fact y) {
    if (!is_finite(x) || !is_finite(y)) return anything();
    const Fact all = corners(x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high);
    return exact(all.low, all.high);
}
// The least integer has no positive counterpart: its absolute value is itself.
FLEXC_SHARED Fact iabs(Fact x) {
    const double size = larger(-x.low, x.high);
    return exact(x.low > 0 ? x.low : x.high < 0 ? -x.high : 0.0, size);
}
FLEXC_SHARED Fact ifloordiv(Fact x, Fact y) {
    if (!is_finite(x) || !is_finite(y)) return anything();
    // No quotient is further from zero than its dividend.
    if (y.low <= 0 && y.high >= 0) return {-iabs(x).high, iabs(x).high};
    return corners(floor(x.low / y.low), floor(x.low / y.high), floor(x.high / y.low),
                   floor(x.high / y.high));
}
FLEXC_SHARED Fact imod(Fact x, Fact y) {
    if (is_finite(x) && is_single(y) && y.low > 0) {
        const double block = floor(x.low / y.low);
        if (floor(x.high / y.low) == block) return {x.low - block * y.low, x.high - block * y.low};
    }
    const double most = y.high > 0 ? y.high - 1 : 0;
    return {y.low < 0 ? y.low + 1 : 0, x.low >= 0 && y.low >= 0 ? smaller(most, x.high) : most};
}
FLEXC_SHARED Fact ineg(Fact x) { return exact(-x.high, -x.low); }
FLEXC_SHARED Fact isign(Fact x) {
    return {double(x.low > 0) - double(x.low < 0), double(x.high > 0) - double(x.high < 0)};
}
FLEXC_SHARED Fact imin(Fact x, Fact y) { return {smaller(x.low, y.low), smaller(x.high, y.high)}; }
FLEXC_SHARED Fact imax(Fact x, Fact y) { return {larger(x.low, y.low), larger(x.high, y.high)}; }
FLEXC_SHARED Fact iand(Fact x, Fact y) {
    if (x.low < 0 && y.low < 0) return anything();
    if (x.low < 0 || y.low < 0) return {0, x.low < 0 ? y.high : x.high};
    return {0, smaller(x.high, y.high)};
}
FLEXC_SHARED Fact ior(Fact x, Fact y) {
    if (x.low < 0 || y.low < 0) return anything();
    return {larger(x.low, y.low), exact(0, x.high + y.high).high};
}
FLEXC_SHARED Fact ixor(Fact x, Fact y) {
    if (x.low < 0 || y.low < 0) return anything();
    return {0, exact(0, x.high + y.high).high};
}
FLEXC_SHARED Fact inot(Fact x) { return exact(-x.high - 1, -x.low - 1); }
FLEXC_SHARED Fact power_of_two(Fact exponent) {
    if (!is_single(exponent) || exponent.low < 0 || exponent.low > 31) return anything();
    const double power = double(1ll << static_cast<int>(exponent.low));
    return {power, power};
}
FLEXC_SHARED Fact ishl(Fact x, Fact amount) { return imul(x, power_of_two(amount)); }
FLEXC_SHARED Fact ishr(Fact x, Fact amount) { return ifloordiv(x, power_of_two(amount)); }

// The values of a sum's counter, from first to end - 1. An empty range adds no terms, so any
// interval is right for it.
FLEXC_SHARED Fact counter(Fact first, Fact end) {
    return {first.low, larger(first.low, end.high - 1)};
}
FLEXC_SHARED Fact sum(Fact counter, Fact term) {
    const Fact total = imul({0, counter.high - counter.low + 1}, term);
    return is_finite(counter) ? total : anything();
}

// --- reals --------------------------------------------------------------------------------------

// A result of f32 arithmetic, with the error that it may have.
FLEXC_SHARED Fact rounded(Fact x) {
    if (!(x.low > -3e38 && x.high < 3e38)) return anything();
    const double slack = 1e-6 * larger(larger(-x.low, x.low), larger(-x.high, x.high)) + 1e-30;
    return {x.low - slack, x.high + slack};
}
FLEXC_SHARED Fact fadd(Fact x, Fact y) { return rounded({x.low + y.low, x.high + y.high}); }
FLEXC_SHARED Fact fsub(Fact x, Fact y) { return rounded({x.low - y.high, x.high - y.low}); }
FLEXC_SHARED Fact fmul(Fact x, Fact y) {
    if (!is_finite(x) || !is_finite(y)) return anything();
    return rounded(corners(x.low * y.low, x.low * y.high, x.high * y.low, x.high * y.high));
}
FLEXC_SHARED Fact fdiv(Fact x, Fact y) {
    if (!is_finite(x) || !is_finite(y) || (y.low <= 0 && y.high >= 0)) return anything();
    return rounded(corners(x.low / y.low, x.low / y.high, x.high / y.low, x.high / y.high));
}
FLEXC_SHARED Fact fma(Fact x, Fact y, Fact z) { return fadd(fmul(x, y), z); }
FLEXC_SHARED Fact fneg(Fact x) { return {-x.high, -x.low}; }
FLEXC_SHARED Fact fabs(Fact x) {
    if (!is_finite(x)) return anything();
    return {x.low > 0 ? x.low : x.high < 0 ? -x.high : 0.0, larger(-x.low, x.high)};
}
FLEXC_SHARED Fact fmin(Fact x, Fact y) {
    return is_finite(x) && is_finite(y) ? imin(x, y) : anything();
}
FLEXC_SHARED Fact fmax(Fact x, Fact y) {
    return is_finite(x) && is_finite(y) ? imax(x, y) : anything();
}
FLEXC_SHARED Fact fclamp(Fact x, Fact y, Fact z) { return fmin(fmax(x, y), z); }
FLEXC_SHARED Fact fsign(Fact x) { return is_finite(x) ? isign(x) : Fact{-1, 1}; }
FLEXC_SHARED Fact ffloor(Fact x) {
    return is_finite(x) ? Fact{floor(x.low), floor(x.high)} : anything();
}
FLEXC_SHARED Fact fceil(Fact x) {
    return is_finite(x) ? Fact{ceil(x.low), ceil(x.high)} : anything();
}
FLEXC_SHARED Fact fround(Fact x) {
    return is_finite(x) ? Fact{rint(x.low), rint(x.high)} : anything();
}
FLEXC_SHARED Fact ftrunc(Fact x) {
    return is_finite(x) ? Fact{trunc(x.low), trunc(x.high)} : anything();
}
FLEXC_SHARED Fact sqrt(Fact x) {
    return x.low >= 0 && is_finite(x) ? rounded({::sqrt(x.low), ::sqrt(x.high)}) : anything();
}

// --- comparison ---------------------------------------------------------------------------------

FLEXC_SHARED Fact truth(bool everywhere, bool somewhere) {
    return {everywhere ? 1.0 : 0.0, somewhere ? 1.0 : 0.0};
}
FLEXC_SHARED bool overlap(Fact x, Fact y) { return x.low <= y.high && y.low <= x.high; }
FLEXC_SHARED bool are_equal(Fact x, Fact y) {
    return is_single(x) && is_single(y) && x.low == y.low;
}
FLEXC_SHARED Fact ilt(Fact x, Fact y) { return truth(x.high < y.low, x.low < y.high); }
FLEXC_SHARED Fact ile(Fact x, Fact y) { return truth(x.high <= y.low, x.low <= y.high); }
FLEXC_SHARED Fact ieq(Fact x, Fact y) { return truth(are_equal(x, y), overlap(x, y)); }
FLEXC_SHARED Fact ine(Fact x, Fact y) { return truth(!overlap(x, y), !are_equal(x, y)); }
// A NaN is neither less nor equal, and unequal to everything.
FLEXC_SHARED bool are_numbers(Fact x, Fact y) { return is_finite(x) && is_finite(y); }
FLEXC_SHARED Fact flt(Fact x, Fact y) {
    return truth(are_numbers(x, y) && x.high < y.low, x.low < y.high);
}
FLEXC_SHARED Fact fle(Fact x, Fact y) {
    return truth(are_numbers(x, y) && x.high <= y.low, x.low <= y.high);
}
FLEXC_SHARED Fact feq(Fact x, Fact y) { return ieq(x, y); }
FLEXC_SHARED Fact fne(Fact x, Fact y) { return ine(x, y); }

// --- logic and selection ------------------------------------------------------------------------

FLEXC_SHARED Fact band(Fact x, Fact y) { return imin(x, y); }
FLEXC_SHARED Fact bor(Fact x, Fact y) { return imax(x, y); }
FLEXC_SHARED Fact bxor(Fact x, Fact y) {
    if (x.low != x.high || y.low != y.high) return any_truth();
    return of(x.low != y.low);
}
FLEXC_SHARED Fact bnot(Fact x) { return {1 - x.high, 1 - x.low}; }
FLEXC_SHARED Fact either(Fact condition, Fact x, Fact y) {
    return condition.low == 1 ? x : condition.high == 0 ? y : hull(x, y);
}
FLEXC_SHARED Fact bselect(Fact c, Fact x, Fact y) { return either(c, x, y); }
FLEXC_SHARED Fact iselect(Fact c, Fact x, Fact y) { return either(c, x, y); }
FLEXC_SHARED Fact fselect(Fact c, Fact x, Fact y) { return either(c, x, y); }

// --- conversion ---------------------------------------------------------------------------------

FLEXC_SHARED Fact bool_to_int(Fact x) { return x; }
FLEXC_SHARED Fact bool_to_real(Fact x) { return x; }
// Rounding is monotonic.
// Goes through memory on the host, as g++ 12 removes two such conversions side by side.
FLEXC_SHARED double in_f32(double x) {
#ifdef __CUDACC__
    return double(float(x));
#else
    volatile float rounded = float(x);
    return double(rounded);
#endif
}
FLEXC_SHARED Fact int_to_real(Fact x) {
    return is_finite(x) ? Fact{in_f32(x.low), in_f32(x.high)} : anything();
}
FLEXC_SHARED Fact real_to_int(Fact x) {
    return is_finite(x) ? exact(trunc(x.low), trunc(x.high)) : anything();
}

} // namespace interval
