#include "memory.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace flexc::test {

namespace {

double f16_to_double(std::uint16_t bits) {
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(mantissa, -24);
    return sign * std::ldexp(1024 + mantissa, exponent - 25);
}

// To nearest even, for values that tests use.
std::uint16_t double_to_f16(double value) {
    const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
    const double size = std::abs(value);
    if (std::isnan(value)) return 0x7e00;
    if (size >= 65520) return sign | 0x7c00;
    int exponent = 0;
    std::frexp(size, &exponent);
    exponent = size == 0 ? -13 : std::max(exponent, -13);
    const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, 11 - exponent)));
    const int bits = ((exponent + 13) << 10) + steps;
    return static_cast<std::uint16_t>(sign | bits);
}

std::uint16_t double_to_bf16(double value) {
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    if (std::isnan(value)) return 0x7fc0;
    return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <typename T> void put(char* place, T value) { std::memcpy(place, &value, sizeof(T)); }
template <typename T> T take(const char* place) {
    T value;
    std::memcpy(&value, place, sizeof(T));
    return value;
}

template <typename Number> void put_as(char* place, DType dtype, Number number) {
    switch (dtype) {
    case DType::f64: return put(place, static_cast<double>(number));
    case DType::f32: return put(place, static_cast<float>(number));
    case DType::f16: return put(place, double_to_f16(static_cast<double>(number)));
    case DType::bf16: return put(place, double_to_bf16(static_cast<double>(number)));
    case DType::i64: return put(place, static_cast<std::int64_t>(number));
    case DType::i32: return put(place, static_cast<std::int32_t>(number));
    case DType::i16: return put(place, static_cast<std::int16_t>(number));
    case DType::i8: return put(place, static_cast<std::int8_t>(number));
    case DType::u8: return put(place, static_cast<std::uint8_t>(number));
    case DType::boolean: return put(place, static_cast<std::uint8_t>(number != 0));
    case DType::e4m3: // of no buffer
    case DType::e5m2: break;
    }
}

} // namespace

Memory::Memory(const std::vector<std::int64_t>& shape, DType dtype, MemoryLayout layout) {
    view_.dtype = dtype;
    view_.rank = static_cast<int>(shape.size());
    std::ranges::copy(shape, view_.shape.begin());
    // Dims from the innermost out, in memory order.
    std::vector<std::size_t> order;
    for (std::size_t dim = shape.size(); dim-- > 0;)
        order.push_back(dim);
    if (layout == MemoryLayout::heads_inside && shape.size() == 4) std::swap(order[1], order[2]);
    std::int64_t stride = layout == MemoryLayout::scattered ? 3 : 1, first = 0;
    for (std::size_t dim : order) {
        const bool turned = layout == MemoryLayout::reversed;
        view_.strides[dim] = turned ? -stride : stride;
        if (turned) first += stride * (shape[dim] - 1);
        stride *= std::max<std::int64_t>(shape[dim], 1);
        if (layout == MemoryLayout::padded) stride += 5;
    }
    bytes_.resize(static_cast<std::size_t>(stride + 8) * size_of(dtype), 0x7f);
    view_.data =
        bytes_.data() + static_cast<std::size_t>(std::max<std::int64_t>(first, 0)) * size_of(dtype);
    if (count() == 0) view_.data = nullptr;
}

char* Memory::place(std::size_t element) const {
    auto rest = static_cast<std::int64_t>(element);
    std::int64_t offset = 0;
    for (auto dim = static_cast<std::size_t>(view_.rank); dim-- > 0;) {
        offset += rest % view_.shape[dim] * view_.strides[dim];
        rest /= view_.shape[dim];
    }
    return static_cast<char*>(view_.data) +
           offset * static_cast<std::int64_t>(size_of(view_.dtype));
}

void Memory::set(const std::vector<double>& values) {
    for (std::size_t i = 0; i < values.size(); ++i)
        put_as(place(i), view_.dtype, values[i]);
}
void Memory::set(const std::vector<std::int64_t>& values) {
    for (std::size_t i = 0; i < values.size(); ++i)
        put_as(place(i), view_.dtype, values[i]);
}

std::vector<double> Memory::get() const {
    std::vector<double> values(count());
    for (std::size_t i = 0; i < values.size(); ++i) {
        const char* from = place(i);
        switch (view_.dtype) {
        case DType::f16: values[i] = f16_to_double(take<std::uint16_t>(from)); break;
        case DType::bf16:
            values[i] =
                std::bit_cast<float>(static_cast<std::uint32_t>(take<std::uint16_t>(from)) << 16);
            break;
        default: values[i] = take<float>(from); break;
        }
    }
    return values;
}

TensorArgument Memory::argument() const {
    return {view_.data, view_.strides[0], view_.strides[1], view_.strides[2], view_.strides[3]};
}

} // namespace flexc::test
