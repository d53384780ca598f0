// Stands in for the device file of the same name.
#pragma once

#include "common/element.cuh"

inline float min_nan(float x, float y) { return x != x || y != y ? NAN : x < y ? x : y; }
inline float max_nan(float x, float y) { return x != x || y != y ? NAN : x < y ? y : x; }
// Of the memory that warpgroup.cuh's stand-in has.
float load_shared_float(unsigned address);
float load_shared_float_if(bool condition, unsigned address);
inline float divide_full(float x, float y) { return x / y; }
inline unsigned long long multiply_add_wide(unsigned x, unsigned y, unsigned long long z) {
    return 1ull * x * y + z;
}
template <typename T> T load_if_used(const T* p) { return *p; }
template <typename T> T load_if(bool condition, const T* p) { return condition ? *p : T(0); }

// Of each half of two words.
template <typename Combine> unsigned combine_f16x2(unsigned x, unsigned y, Combine combine) {
    unsigned result = 0;
    for (int shift = 0; shift < 32; shift += 16) {
        const auto half = [&](unsigned pair) {
            return flexc_to_float(flexc_f16{static_cast<unsigned short>(pair >> shift)});
        };
        result |= static_cast<unsigned>(combine(half(x), half(y))) << shift;
    }
    return result;
}
inline unsigned short f16_bits(float x) {
    const auto narrow = static_cast<_Float16>(x);
    unsigned short bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    return bits;
}
inline unsigned add_f16x2(unsigned x, unsigned y) {
    return combine_f16x2(x, y, [](float a, float b) { return f16_bits(a + b); });
}
inline unsigned multiply_f16x2(unsigned x, unsigned y) {
    return combine_f16x2(x, y, [](float a, float b) { return f16_bits(a * b); });
}
inline unsigned greater_f16x2(unsigned x, unsigned y) {
    return combine_f16x2(x, y, [](float a, float b) { return a > b ? 0xffffu : 0u; });
}
