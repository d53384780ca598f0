// What each operator computes: the vocabulary of the `reference` column of ops.def, over double and
// over Dual, whose slopes are the oracle that derivatives are tested against.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace flexc::ir::reference {

// Int64 arithmetic that wraps; division, modulo and shifts are total.
struct Integer {
    std::int64_t value = 0;

    constexpr Integer(std::int64_t number = 0) : value(number) {}
    constexpr explicit operator double() const { return static_cast<double>(value); }
    constexpr std::uint64_t bits() const { return static_cast<std::uint64_t>(value); }
    static constexpr Integer of_bits(std::uint64_t bits) { return static_cast<std::int64_t>(bits); }

    friend constexpr Integer operator+(Integer x, Integer y) {
        return of_bits(x.bits() + y.bits());
    }
    friend constexpr Integer operator-(Integer x, Integer y) {
        return of_bits(x.bits() - y.bits());
    }
    friend constexpr Integer operator*(Integer x, Integer y) {
        return of_bits(x.bits() * y.bits());
    }
    friend constexpr Integer operator-(Integer x) { return of_bits(0 - x.bits()); }
    friend constexpr Integer operator~(Integer x) { return ~x.value; }
    friend constexpr Integer operator&(Integer x, Integer y) { return x.value & y.value; }
    friend constexpr Integer operator|(Integer x, Integer y) { return x.value | y.value; }
    friend constexpr Integer operator^(Integer x, Integer y) { return x.value ^ y.value; }
    friend constexpr auto operator<=>(Integer x, Integer y) = default;
};

constexpr Integer floor_divide(Integer x, Integer y) {
    if (y == 0) return 0;
    if (y == -1) return -x;
    const std::int64_t quotient = x.value / y.value;
    const bool inexact = x.value % y.value != 0;
    return quotient - (inexact && (x.value < 0) != (y.value < 0) ? 1 : 0);
}

constexpr Integer floor_modulo(Integer x, Integer y) {
    if (y == 0 || y == -1) return 0;
    const std::int64_t remainder = x.value % y.value;
    return remainder != 0 && (remainder < 0) != (y.value < 0) ? remainder + y.value : remainder;
}

// Negative exponents give the whole part of the quotient 1 / x^-y, and 0 for x = 0.
constexpr Integer integer_power(Integer x, Integer y) {
    if (y < 0) {
        if (x == 1) return 1;
        if (x == -1) return (y.value & 1) != 0 ? -1 : 1;
        return 0;
    }
    Integer result = 1;
    for (std::uint64_t exponent = y.bits(); exponent != 0; exponent >>= 1) {
        if ((exponent & 1) != 0) result = result * x;
        x = x * x;
    }
    return result;
}

constexpr Integer shift_left(Integer x, Integer y) {
    return y < 0 || y > 63 ? Integer(0) : Integer::of_bits(x.bits() << y.value);
}

constexpr Integer shift_right(Integer x, Integer y) {
    if (y < 0 || y > 63) return x < 0 ? -1 : 0;
    return x.value >> y.value;
}

// --- double
// ----------------------------------------------------------------------------------------
inline double fabs(double x) { return std::fabs(x); }
inline double floor(double x) { return std::floor(x); }
inline double ceil(double x) { return std::ceil(x); }
inline double trunc(double x) { return std::trunc(x); }
inline double exp(double x) { return std::exp(x); }
inline double exp2(double x) { return std::exp2(x); }
inline double expm1(double x) { return std::expm1(x); }
inline double log(double x) { return std::log(x); }
inline double log2(double x) { return std::log2(x); }
inline double log1p(double x) { return std::log1p(x); }
inline double sqrt(double x) { return std::sqrt(x); }
inline double pow(double x, double y) { return std::pow(x, y); }
inline double sin(double x) { return std::sin(x); }
inline double cos(double x) { return std::cos(x); }
inline double tan(double x) { return std::tan(x); }
inline double tanh(double x) { return std::tanh(x); }
inline double erf(double x) { return std::erf(x); }
inline double fma(double x, double y, double z) { return std::fma(x, y, z); }

inline double sign(double x) { return (x > 0) - (x < 0); } // NaN gives 0
inline double round_even(double x) {
    if (!(std::fabs(x) < 0x1p52)) return x;
    const double below = std::floor(x);
    const double rest = x - below;
    const bool up = rest > 0.5 || (rest == 0.5 && std::fmod(below, 2.0) != 0);
    return std::copysign(up ? below + 1 : below, x);
}

// NaN when either is NaN.
inline double minimum(double x, double y) { return x < y || std::isnan(x) ? x : y; }
inline double maximum(double x, double y) { return x > y || std::isnan(x) ? x : y; }
inline double clamp(double x, double low, double high) { return minimum(maximum(x, low), high); }

// Python's: the sign of the divisor.
inline double modulo(double x, double y) {
    const double remainder = std::fmod(x, y);
    return remainder != 0 && (remainder < 0) != (y < 0) ? remainder + y : remainder;
}

inline double sigmoid(double x) {
    return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}
inline double softplus(double x) {
    return std::isnan(x) ? x : std::fmax(x, 0.0) + std::log1p(std::exp(-std::fabs(x)));
}

inline Integer truncate_to_int(double x) {
    if (std::isnan(x)) return 0;
    if (x >= 0x1p63) return std::numeric_limits<std::int64_t>::max();
    if (x <= -0x1p63) return std::numeric_limits<std::int64_t>::min();
    return static_cast<std::int64_t>(x);
}

// --- dual numbers
// ----------------------------------------------------------------------------------
struct Dual {
    double value = 0;
    double slope = 0;

    constexpr Dual(double number = 0, double derivative = 0) : value(number), slope(derivative) {}

    friend constexpr bool operator<(Dual x, Dual y) { return x.value < y.value; }
    friend constexpr bool operator<=(Dual x, Dual y) { return x.value <= y.value; }
    friend constexpr bool operator==(Dual x, Dual y) { return x.value == y.value; }
    friend constexpr bool operator!=(Dual x, Dual y) { return x.value != y.value; }

    friend Dual operator-(Dual x) { return {-x.value, -x.slope}; }
    friend Dual operator+(Dual x, Dual y) { return {x.value + y.value, x.slope + y.slope}; }
    friend Dual operator-(Dual x, Dual y) { return {x.value - y.value, x.slope - y.slope}; }
    friend Dual operator*(Dual x, Dual y);
    friend Dual operator/(Dual x, Dual y);
};

// A slope of 0 stays 0 even where the derivative is infinite or undefined.
inline double chain(double derivative, double slope) { return slope == 0 ? 0 : derivative * slope; }

inline Dual operator*(Dual x, Dual y) {
    return {x.value * y.value, chain(y.value, x.slope) + chain(x.value, y.slope)};
}
inline Dual operator/(Dual x, Dual y) {
    return {x.value / y.value,
            chain(1 / y.value, x.slope) - chain(x.value / (y.value * y.value), y.slope)};
}

// Piecewise constant: no slope.
inline Dual floor(Dual x) { return std::floor(x.value); }
inline Dual ceil(Dual x) { return std::ceil(x.value); }
inline Dual trunc(Dual x) { return std::trunc(x.value); }
inline Dual sign(Dual x) { return sign(x.value); }
inline Dual round_even(Dual x) { return round_even(x.value); }
inline Integer truncate_to_int(Dual x) { return truncate_to_int(x.value); }

inline Dual fabs(Dual x) {
    return {std::fabs(x.value), x.value > 0 ? x.slope : x.value < 0 ? -x.slope : 0};
}
// At a tie, half to each; if one is NaN, PyTorch sends the whole gradient to both.
inline double shared_slope(bool first, bool second, Dual x, Dual y) {
    if (x == y) return 0.5 * (x.slope + y.slope);
    return (second ? 0 : x.slope) + (first ? 0 : y.slope);
}
inline Dual minimum(Dual x, Dual y) {
    return {minimum(x.value, y.value), shared_slope(x < y, y < x, x, y)};
}
inline Dual maximum(Dual x, Dual y) {
    return {maximum(x.value, y.value), shared_slope(y < x, x < y, x, y)};
}
inline Dual clamp(Dual x, Dual low, Dual high) {
    double slope = 0;
    if (low <= x && x <= high) slope += x.slope;
    if (x < low && low <= high) slope += low.slope;
    if (high < x || high < low) slope += high.slope;
    return {clamp(x.value, low.value, high.value), slope};
}
inline Dual modulo(Dual x, Dual y) {
    return {modulo(x.value, y.value), x.slope - chain(std::floor(x.value / y.value), y.slope)};
}
inline Dual fma(Dual x, Dual y, Dual z) { return x * y + z; }

inline Dual exp(Dual x) { return {std::exp(x.value), chain(std::exp(x.value), x.slope)}; }
inline Dual exp2(Dual x) {
    return {std::exp2(x.value), chain(std::log(2.0) * std::exp2(x.value), x.slope)};
}
inline Dual expm1(Dual x) { return {std::expm1(x.value), chain(std::exp(x.value), x.slope)}; }
inline Dual log(Dual x) { return {std::log(x.value), chain(1 / x.value, x.slope)}; }
inline Dual log2(Dual x) {
    return {std::log2(x.value), chain(1 / (x.value * std::log(2.0)), x.slope)};
}
inline Dual log1p(Dual x) { return {std::log1p(x.value), chain(1 / (1 + x.value), x.slope)}; }
inline Dual sqrt(Dual x) {
    return {std::sqrt(x.value), chain(1 / (2 * std::sqrt(x.value)), x.slope)};
}
inline Dual pow(Dual x, Dual y) {
    const double to_base = y.value == 0 ? 0 : y.value * std::pow(x.value, y.value - 1);
    const double to_exponent =
        x.value == 0 && y.value >= 0 ? 0 : std::pow(x.value, y.value) * std::log(x.value);
    return {std::pow(x.value, y.value), chain(to_base, x.slope) + chain(to_exponent, y.slope)};
}
inline Dual sin(Dual x) { return {std::sin(x.value), chain(std::cos(x.value), x.slope)}; }
inline Dual cos(Dual x) { return {std::cos(x.value), chain(-std::sin(x.value), x.slope)}; }
inline Dual tan(Dual x) {
    return {std::tan(x.value), chain(1 / (std::cos(x.value) * std::cos(x.value)), x.slope)};
}
inline Dual tanh(Dual x) {
    return {std::tanh(x.value), chain(1 / (std::cosh(x.value) * std::cosh(x.value)), x.slope)};
}
inline Dual sigmoid(Dual x) {
    return {sigmoid(x.value), chain(sigmoid(x.value) * sigmoid(-x.value), x.slope)};
}
inline Dual softplus(Dual x) { return {softplus(x.value), chain(sigmoid(x.value), x.slope)}; }
inline Dual erf(Dual x) {
    constexpr double kTwoOverRootPi = 1.1283791670955126;
    return {std::erf(x.value), chain(kTwoOverRootPi * std::exp(-x.value * x.value), x.slope)};
}

} // namespace flexc::ir::reference
