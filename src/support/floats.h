// Floating-point formats in memory, and conversions to and from float: to nearest, ties to even;
// NaN stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace flexc::support {

struct F32 {
    using Bits = float;
    static float widen(float value) { return value; }
    static float narrow(float value) { return value; }
};

struct Bf16 {
    using Bits = std::uint16_t;
    static float widen(std::uint16_t bits) {
        return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
    }
    static std::uint16_t narrow(float value) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
        const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
        return static_cast<std::uint16_t>((is_nan ? bits | 0x400000 : rounded) >> 16);
    }
};

struct F16 {
    using Bits = std::uint16_t;
    // The multiplication moves the exponent's bias, for denormals too.
    static float widen(std::uint16_t bits) {
        const std::uint32_t magnitude = (bits & 0x7fffu) << 13;
        const auto scaled =
            std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) * 0x1p112f);
        const std::uint32_t special = (bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u;
        return std::bit_cast<float>(scaled | special | (bits & 0x8000u) << 16);
    }
    static std::uint16_t narrow(float value) {
        const auto bits = std::bit_cast<std::uint32_t>(value);
        const std::uint32_t magnitude = bits & 0x7fffffff;
        // Adding 0.5 leaves a denormal result, rounded, in the low bits.
        const std::uint32_t small =
            std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
        const std::uint32_t normal = (magnitude + 0xc8000fff + ((magnitude >> 13) & 1)) >> 13;
        const std::uint32_t large = magnitude > 0x7f800000 ? 0x7e00 : 0x7c00;
        const std::uint32_t result = magnitude >= 0x47800000  ? large
                                     : magnitude < 0x38800000 ? small
                                                              : normal;
        return static_cast<std::uint16_t>(result | (bits >> 16 & 0x8000));
    }
};

// Converts a magnitude to kMantissa bits and an exponent biased by kBias; it must fit.
template <int kMantissa, int kBias> std::uint8_t narrow_size(float size) {
    constexpr int kShift = 23 - kMantissa, kLeastExponent = 1 - kBias;
    const auto bits = std::bit_cast<std::uint32_t>(size);
    if (size >= std::bit_cast<float>((127u + kLeastExponent) << 23)) {
        const std::uint32_t half = (1u << (kShift - 1)) - 1;
        const std::uint32_t rounded = (bits + half + (bits >> kShift & 1)) >> kShift;
        return static_cast<std::uint8_t>(rounded - ((127u - kBias) << kMantissa));
    }
    // Below normal numbers, adding one whose last bit is the least size leaves multiples of that.
    const float aligned = std::bit_cast<float>((127u + kLeastExponent + kShift) << 23);
    return static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(size + aligned));
}

// Eight bits. The exponent of e4m3 is biased by 7, and its largest value, to which narrow()
// saturates, is no infinity; e5m2 is the upper half of f16.
struct E4m3 {
    using Bits = std::uint8_t;
    static float widen(std::uint8_t bits) {
        const std::uint32_t magnitude = bits & 0x7fu, sign = (bits & 0x80u) << 24;
        const float value = magnitude == 0x7f ? std::bit_cast<float>(0x7fc00000u)
                            : magnitude < 8
                                ? static_cast<float>(magnitude) * 0x1p-9f
                                : std::bit_cast<float>((magnitude << 20) + (120u << 23));
        return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
    }
    static std::uint8_t narrow(float value) {
        const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
        const float size = std::fabs(value);
        if (!(size == size)) return sign | 0x7f;
        return sign | (size >= 448 ? std::uint8_t{0x7e} : narrow_size<3, 7>(size));
    }
};
struct E5m2 {
    using Bits = std::uint8_t;
    static std::uint8_t narrow(float value) {
        constexpr float kRoundsToInfinity = 61440;
        const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
        const float size = std::fabs(value);
        if (!(size == size)) return sign | 0x7e;
        return sign | (size >= kRoundsToInfinity ? std::uint8_t{0x7c} : narrow_size<2, 15>(size));
    }
    static float widen(std::uint8_t bits) {
        return F16::widen(static_cast<std::uint16_t>(bits << 8));
    }
};
struct I8 {
    using Bits = std::int8_t;
    static float widen(std::int8_t value) { return value; }
};

struct F64 {
    using Bits = double;
    static float widen(double value) { return static_cast<float>(value); }
    static double narrow(float value) { return value; }
};

} // namespace flexc::support
