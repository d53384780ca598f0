// Stands in for the device file of the same name.
#pragma once

struct flexc_f16 {
    unsigned short bits;
};
struct flexc_bf16 {
    unsigned short bits;
};

inline float flexc_to_float(float x) { return x; }
inline float flexc_to_float(flexc_bf16 x) {
    return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
inline float flexc_to_float(flexc_f16 x) {
    const int exponent = x.bits >> 10 & 31;
    const int fraction = x.bits & 1023;
    const float size = exponent == 31 ? fraction == 0 ? INFINITY : NAN
                       : exponent == 0
                           ? std::ldexp(static_cast<float>(fraction), -24)
                           : std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
    return (x.bits & 0x8000) != 0 ? -size : size;
}

template <typename E> float flexc_first(E, unsigned pair) {
    return flexc_to_float(E{static_cast<unsigned short>(pair & 0xffffu)});
}
template <typename E> float flexc_second(E, unsigned pair) {
    return flexc_to_float(E{static_cast<unsigned short>(pair >> 16)});
}

// Round to nearest even.
template <typename T> T flexc_from_float(float x);
template <> inline float flexc_from_float<float>(float x) { return x; }
template <> inline double flexc_from_float<double>(float x) { return x; }
template <> inline flexc_bf16 flexc_from_float<flexc_bf16>(float x) {
    const unsigned bits = __float_as_uint(x);
    return {static_cast<unsigned short>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
template <> inline flexc_f16 flexc_from_float<flexc_f16>(float x) {
    const auto narrow = static_cast<_Float16>(x);
    flexc_f16 result;
    std::memcpy(&result, &narrow, sizeof result);
    return result;
}
