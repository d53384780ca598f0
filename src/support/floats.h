// Formats of floating point numbers in memory, and their ways to and from float: to nearest, ties
// to even; NaN stays NaN.
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
        constexpr float kLargest = 448, kLeastNormal = 0x1p-6f;
        const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
        const float size = std::fabs(value);
        if (!(size == size)) return sign | 0x7f;
        if (size >= kLargest) return sign | 0x7e;
        // Adding 2^14 leaves multiples of 2^-9, rounded, in the low bits.
        if (size < kLeastNormal)
            return sign | static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(size + 0x1p14f));
        const auto bits = std::bit_cast<std::uint32_t>(size);
        const std::uint32_t rounded = (bits + 0x7ffff + (bits >> 20 & 1)) >> 20;
        return sign | static_cast<std::uint8_t>(rounded - (120u << 3));
    }
};
struct E5m2 {
    using Bits = std::uint8_t;
    static std::uint8_t narrow(float value) {
        constexpr float kLeastNormal = 0x1p-14f, kRoundsToInfinity = 61440;
        const auto sign = static_cast<std::uint8_t>(std::signbit(value) ? 0x80 : 0);
        const float size = std::fabs(value);
        if (!(size == size)) return sign | 0x7e;
        if (size >= kRoundsToInfinity) return sign | 0x7c;
        // As above, with multiples of 2^-16.
        if (size < kLeastNormal)
            return sign | static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(size + 0x1p7f));
        const auto bits = std::bit_cast<std::uint32_t>(size);
        const std::uint32_t rounded = (bits + 0xfffff + (bits >> 21 & 1)) >> 21;
        return sign | static_cast<std::uint8_t>(rounded - (112u << 2));
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
