// Division by multiplication: what the host finds of a divisor that is the same for a launch, and
// kernels multiply positions by.
#pragma once

#include "common/host_device.h"

// `multiplier` is 2^(31 + shift) / |divisor|, rounded up; 0 for a divisor of 0. For dividends of at
// most 2^31 - 2 in magnitude.
struct Reciprocal {
    unsigned multiplier;
    int shift;
};

FLEXC_SHARED constexpr Reciprocal reciprocal_of(long long divisor) {
    if (divisor == 0) return {0, 0};
    // Larger ones have the same quotients of these dividends.
    constexpr unsigned long long kMost = 0x7fffffff;
    const unsigned long long magnitude = divisor < 0
                                             ? 0ull - static_cast<unsigned long long>(divisor)
                                             : static_cast<unsigned long long>(divisor);
    const unsigned long long size = magnitude < kMost ? magnitude : kMost;
    int shift = 0;
    while ((1ull << shift) < size)
        ++shift;
    const unsigned long long multiplier = ((1ull << (31 + shift)) + size - 1) / size;
    return {static_cast<unsigned>(multiplier), shift};
}
FLEXC_SHARED constexpr int sign_of(long long divisor) { return (divisor > 0) - (divisor < 0); }
