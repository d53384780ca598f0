// Sums of floats that do not depend on the order of additions: fixed-point numbers that span the
// whole range of float (a Kulisch accumulator). Included by device and host code.
//
// A float is 24 bits somewhere in that range. It touches at most two adjacent words, each by an
// integer addition, which is associative and commutative. Words have spare bits, so carries need
// not be propagated until the sum is rounded.
#pragma once

#include "common/host_device.h"

namespace exact {

// A sum with all bytes zero is 0. It can hold at least 2^32 terms.
struct Sum {
    static constexpr int kWords = 9, kBits = 31;
    static constexpr int kLowest = -149; // exponent of the least float

    long long words[kWords]; // counts of 2^(kLowest + kBits * i)
    unsigned flags;          // Flag, of terms that are no numbers
    unsigned unused;
};

enum Flag : unsigned { kNan = 1, kInfinite = 2, kMinusInfinite = 4 };

// The contribution of one float: `low` to words[word] and, unless it is zero, `high` to words[word
// + 1].
struct Term {
    int word;
    long long low, high;
    unsigned flags; // if any is set, nothing else is added
};

FLEXC_SHARED Term term_of(unsigned float_bits) {
    constexpr long long kMask = (1ll << Sum::kBits) - 1;
    const int exponent = static_cast<int>(float_bits >> 23 & 0xff);
    const unsigned mantissa = float_bits & 0x7fffff;
    const bool negative = float_bits >> 31 != 0;
    if (exponent == 0xff)
        return {0, 0, 0, mantissa != 0 ? kNan : negative ? kMinusInfinite : kInfinite};
    const int position = exponent == 0 ? 0 : exponent - 1; // of the lowest bit
    const long long digits = exponent == 0 ? mantissa : mantissa | 0x800000;
    const long long placed = digits << position % Sum::kBits;
    const long long low = placed & kMask, high = placed >> Sum::kBits;
    return {position / Sum::kBits, negative ? -low : low, negative ? -high : high, 0};
}

// Returns the bits of the nearest float, ties to even.
FLEXC_SHARED unsigned rounded(const Sum& sum) {
    constexpr unsigned kInfinity = 0x7f800000, kAnyNan = 0x7fffffff, kSign = 0x80000000;
    constexpr unsigned kBoth = kInfinite | kMinusInfinite;
    if ((sum.flags & kNan) != 0 || (sum.flags & kBoth) == kBoth) return kAnyNan;
    if (sum.flags != 0) return sum.flags == kInfinite ? kInfinity : kInfinity | kSign;

    // Propagates carries, then separates the sign: digits of kBits each, two of them for what the
    // last word holds beyond its kBits.
    using Wide = unsigned long long;
    constexpr Wide kMask = (1ull << Sum::kBits) - 1;
    constexpr int kDigits = Sum::kWords + 2;
    Wide digits[kDigits];
    long long carry = 0;
    for (int i = 0; i < Sum::kWords; ++i) {
        const long long word = sum.words[i] + carry;
        digits[i] = static_cast<Wide>(word) & kMask;
        carry = word >> Sum::kBits;
    }
    digits[kDigits - 2] = static_cast<Wide>(carry) & kMask;
    digits[kDigits - 1] = static_cast<Wide>(carry >> Sum::kBits) & kMask;
    const bool negative = carry < 0;
    if (negative) {
        Wide borrowed = 1;
        for (int i = 0; i < kDigits; ++i) {
            const Wide digit = (~digits[i] & kMask) + borrowed;
            digits[i] = digit & kMask;
            borrowed = digit >> Sum::kBits;
        }
    }

    // The highest digit that is not zero, and 33 bits after it; whether anything comes later.
    int highest = -1;
    Wide leading = 0;
    bool rest = false;
    for (int i = kDigits - 1; i >= 0; --i) {
        const Wide digit = digits[i];
        if (highest < 0) {
            if (digit == 0) continue;
            highest = i;
            leading = digit << 33;
        } else if (highest - i == 1) {
            leading |= digit << 2;
        } else if (highest - i == 2) {
            leading |= digit >> 29;
            rest = (digit & ((1ull << 29) - 1)) != 0;
        } else {
            rest = rest || digit != 0;
        }
    }
    if (highest < 0) return 0;

    // The lowest bit of `leading` counts 2^(kLowest + position), that of the result `dropped` more:
    // 24 bits remain, or fewer where floats end.
    int zeros = 0;
    for (int step = 16; step > 0; step /= 2)
        if (leading << zeros >> (64 - step) == 0) zeros += step;
    const int position = Sum::kBits * highest - 33;
    const int dropped = 40 - zeros > -position ? 40 - zeros : -position;
    Wide mantissa = leading >> dropped;
    const Wide remainder = leading & ((1ull << dropped) - 1), half = 1ull << (dropped - 1);
    if (remainder > half || (remainder == half && (rest || (mantissa & 1) != 0))) ++mantissa;
    // A mantissa of 24 bits brings the exponent's lowest bit with it.
    const Wide bits = (static_cast<Wide>(position + dropped) << 23) + mantissa;
    return (bits < kInfinity ? static_cast<unsigned>(bits) : kInfinity) | (negative ? kSign : 0);
}

// Arguments of round_sums.cu: to[i] += from[i].
struct Rounding {
    const Sum* from;
    float* to;
    long long count;
};

} // namespace exact
