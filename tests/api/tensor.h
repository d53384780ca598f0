// Tensors of tests: numbers as they are stored, and memory of a device with its host image.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "flexc/flexc.h"

namespace flexc::test {

// What 16-bit storage does to a value; the oracle sees the stored value.
inline std::uint16_t to_bf16(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
inline float from_bf16(std::uint16_t bits) {
    return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

// Of eight bits, by their definition: a sign, an exponent and `fraction` bits of one.
inline double from_eight_bits(DType dtype, unsigned bits) {
    const int fraction = dtype == DType::e4m3 ? 3 : 2, bias = dtype == DType::e4m3 ? 7 : 15;
    const unsigned magnitude = bits & 0x7f, field = magnitude >> fraction;
    const double part = (magnitude & ((1u << fraction) - 1)) / static_cast<double>(1 << fraction);
    double value = field == 0 ? std::ldexp(part, 1 - bias)
                              : std::ldexp(1 + part, static_cast<int>(field) - bias);
    if (dtype == DType::e4m3 && magnitude == 0x7f) value = std::nan("");
    if (dtype == DType::e5m2 && field == 31) value = part == 0 ? HUGE_VAL : std::nan("");
    return (bits & 0x80) != 0 ? -value : value;
}
// Of a value that there is.
inline std::uint8_t to_eight_bits(DType dtype, double value) {
    static const auto kBits = [] {
        std::array<std::map<double, std::uint8_t>, 2> bits;
        for (unsigned code = 0; code < 256; ++code)
            for (const DType type : {DType::e4m3, DType::e5m2})
                if (const double of = from_eight_bits(type, code); !std::isnan(of))
                    bits[type == DType::e5m2].emplace(of, static_cast<std::uint8_t>(code));
        return bits;
    }();
    return std::isnan(value) ? 0x7f : kBits[dtype == DType::e5m2].at(value);
}

inline void store(DType dtype, std::byte* to, double value) {
    switch (dtype) {
    case DType::f64: std::memcpy(to, &value, 8); break;
    case DType::f32: {
        const auto narrow = static_cast<float>(value);
        std::memcpy(to, &narrow, 4);
        break;
    }
    case DType::f16: {
        const auto narrow = static_cast<_Float16>(value);
        std::memcpy(to, &narrow, 2);
        break;
    }
    case DType::bf16: {
        const std::uint16_t narrow = to_bf16(static_cast<float>(value));
        std::memcpy(to, &narrow, 2);
        break;
    }
    case DType::e4m3:
    case DType::e5m2: *to = static_cast<std::byte>(to_eight_bits(dtype, value)); break;
    default: {
        // Two's complement: the low bytes of an int64 are the narrower integer.
        const auto integer = static_cast<std::int64_t>(value);
        std::memcpy(to, &integer, size_of(dtype));
    }
    }
}

inline double load(DType dtype, const std::byte* from) {
    switch (dtype) {
    case DType::f64: {
        double value = 0;
        std::memcpy(&value, from, 8);
        return value;
    }
    case DType::f32: {
        float value = 0;
        std::memcpy(&value, from, 4);
        return value;
    }
    case DType::f16: {
        _Float16 value = 0;
        std::memcpy(&value, from, 2);
        return static_cast<double>(value);
    }
    case DType::bf16: {
        std::uint16_t value = 0;
        std::memcpy(&value, from, 2);
        return from_bf16(value);
    }
    default: return 0;
    }
}

inline double rounded(DType dtype, double value) {
    std::byte bytes[8] = {};
    if (!is_float(dtype) || dtype == DType::f64) return value;
    store(dtype, bytes, value);
    return load(dtype, bytes);
}

// A tensor on the device with its host image.
class Tensor {
  public:
    // padding: of [B, S, H, D] storage; 0 for [B, H, S, D] without gaps.
    Tensor(Device device, DType dtype, std::vector<std::int64_t> shape, std::int64_t padding = 0)
        : dtype_(dtype), shape_(std::move(shape)) {
        std::int64_t elements = 1;
        for (const std::int64_t extent : shape_)
            elements *= extent;
        strides_.resize(shape_.size());
        if (padding != 0 && shape_.size() == 4) {
            const std::int64_t row = shape_[3] + padding;
            strides_ = {shape_[1] * shape_[2] * row, row, shape_[1] * row, 1};
            elements = shape_[0] * shape_[1] * shape_[2] * row;
        } else {
            std::int64_t stride = 1;
            for (std::size_t i = shape_.size(); i-- > 0;) {
                strides_[i] = stride;
                stride *= shape_[i];
            }
        }
        host_.resize(static_cast<std::size_t>(elements) * size_of(dtype));
        auto memory = DeviceMemory::allocate(device, std::max<std::size_t>(host_.size(), 1));
        if (memory) memory_ = std::move(*memory);
        // NaN everywhere: whoever does not write an output is found out.
        (void)memory_.fill(0xff);
    }

    void set(const std::vector<double>& values) {
        std::size_t next = 0;
        each([&](std::size_t at) { store(dtype_, &host_[at * size_of(dtype_)], values[next++]); });
        (void)memory_.upload(host_.data(), host_.size());
    }

    std::vector<double> get() {
        (void)memory_.download(host_.data(), host_.size());
        std::vector<double> values;
        each([&](std::size_t at) { values.push_back(load(dtype_, &host_[at * size_of(dtype_)])); });
        return values;
    }

    // As the device has it; what is not written there again is found out.
    std::vector<std::byte> take() {
        std::vector<std::byte> bytes(host_.size());
        (void)memory_.download(bytes.data(), bytes.size());
        (void)memory_.fill(0xff);
        return bytes;
    }

    TensorView view() const {
        TensorView result = TensorView::contiguous(memory_.data(), dtype_, shape_);
        std::copy(strides_.begin(), strides_.end(), result.strides.begin());
        return result;
    }

  private:
    template <typename Visit> void each(Visit visit) const {
        std::vector<std::int64_t> index(shape_.size(), 0);
        std::int64_t count = 1;
        for (const std::int64_t extent : shape_)
            count *= extent;
        for (std::int64_t i = 0; i < count; ++i) {
            std::int64_t at = 0;
            for (std::size_t d = 0; d < index.size(); ++d)
                at += index[d] * strides_[d];
            visit(static_cast<std::size_t>(at));
            for (std::size_t d = index.size(); d-- > 0;) {
                if (++index[d] < shape_[d]) break;
                index[d] = 0;
            }
        }
    }

    DType dtype_;
    std::vector<std::int64_t> shape_, strides_;
    std::vector<std::byte> host_;
    DeviceMemory memory_;
};

} // namespace flexc::test
