#include "guarded_tensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace flexc::fuzz {

namespace {

template <typename Number> void put(void* data, std::size_t index, Number value) {
    std::memcpy(static_cast<std::byte*>(data) + index * sizeof(Number), &value, sizeof(Number));
}

std::int64_t integer(Random& random, bool is_hostile) {
    static constexpr std::array<std::int64_t, 8> kIntegers = {
        -1,
        0x7fffffff,
        -0x80000000LL,
        0x80000000LL,
        1LL << 53,
        std::numeric_limits<std::int64_t>::max(),
        std::numeric_limits<std::int64_t>::min(),
        -2};
    return is_hostile && random.chance(10) ? random.pick(kIntegers) : random.integer(0, 6);
}

void fill(void* data, std::size_t index, DType dtype, Random& random, bool is_hostile) {
    switch (dtype) {
    case DType::f64: return put(data, index, real(random, is_hostile));
    case DType::f32: return put(data, index, static_cast<float>(real(random, is_hostile)));
    // Any bits are a number of these types: most of them usual, the rest of all sizes.
    case DType::f16:
        return put(data, index,
                   static_cast<std::uint16_t>(is_hostile && random.chance(10)
                                                  ? random.integer(0, 0xffff)
                                                  : 0x3000 + random.integer(0, 0xc00)));
    case DType::bf16:
        return put(data, index,
                   static_cast<std::uint16_t>(is_hostile && random.chance(10)
                                                  ? random.integer(0, 0xffff)
                                                  : 0x3e00 + random.integer(0, 0x1ff)));
    case DType::i64: return put(data, index, integer(random, is_hostile));
    case DType::i32:
        return put(data, index, static_cast<std::int32_t>(integer(random, is_hostile)));
    case DType::i16:
        return put(data, index, static_cast<std::int16_t>(integer(random, is_hostile)));
    case DType::i8:
    case DType::u8: return put(data, index, static_cast<std::int8_t>(integer(random, is_hostile)));
    case DType::boolean: return put(data, index, static_cast<std::uint8_t>(random.integer(0, 1)));
    case DType::e4m3:
    case DType::e5m2: return put(data, index, static_cast<std::uint8_t>(random.integer(0, 255)));
    }
}

} // namespace

double real(Random& random, bool is_hostile) {
    static constexpr std::array kReals = {0.0,
                                          -0.0,
                                          1e30,
                                          -1e30,
                                          3.4e38,
                                          -3.4028234e38,
                                          1e-45,
                                          1e18,
                                          std::numeric_limits<double>::infinity(),
                                          -std::numeric_limits<double>::infinity(),
                                          std::numeric_limits<double>::quiet_NaN()};
    return is_hostile && random.chance(10) ? random.pick(kReals) : random.real();
}

TensorView Tensors::make(DType dtype, const std::vector<std::int64_t>& shape, bool constant) {
    std::size_t elements = 1;
    for (const std::int64_t extent : shape)
        elements *= static_cast<std::size_t>(extent);
    Guarded& memory =
        memory_.emplace_back(elements * size_of(dtype), size_of(dtype),
                             random_.chance(70) ? Guarded::Edge::end : Guarded::Edge::start);
    for (std::size_t i = 0; i < elements; ++i)
        fill(memory.data(), i, dtype, random_, is_hostile_);
    if (constant) memory.make_constant();
    return TensorView::contiguous(memory.data(), dtype, shape);
}

TensorView Tensors::copy(std::span<const std::int32_t> numbers) {
    Guarded& memory =
        memory_.emplace_back(numbers.size_bytes(), sizeof(std::int32_t), Guarded::Edge::end);
    std::ranges::copy(numbers, static_cast<std::int32_t*>(memory.data()));
    memory.make_constant();
    return TensorView::contiguous(memory.data(), DType::i32,
                                  {static_cast<std::int64_t>(numbers.size())});
}

Workspace Tensors::workspace(std::size_t bytes) {
    if (bytes == 0) return {};
    memory_.emplace_back(bytes, 256, Guarded::Edge::end);
    return {memory_.back().data(), bytes};
}

} // namespace flexc::fuzz
