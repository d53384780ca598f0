#include "runtime/mask_values.h"

#include <bit>
#include <cstring>
#include <utility>

#include "support/floats.h"

namespace flexc::runtime {

namespace {

template <typename T> T load(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

ir::Value<double> element(DType dtype, const std::byte* from) {
    switch (dtype) {
    case DType::f64: return {.real = support::F64::widen(load<double>(from))};
    case DType::f32: return {.real = load<float>(from)};
    case DType::f16: return {.real = support::F16::widen(load<std::uint16_t>(from))};
    case DType::bf16: return {.real = support::Bf16::widen(load<std::uint16_t>(from))};
    case DType::i64: return {.integer = load<std::int64_t>(from)};
    case DType::i32: return {.integer = load<std::int32_t>(from)};
    case DType::i16: return {.integer = load<std::int16_t>(from)};
    case DType::i8: return {.integer = load<std::int8_t>(from)};
    case DType::u8: return {.integer = load<std::uint8_t>(from)};
    case DType::boolean: return {.boolean = load<std::uint8_t>(from) != 0};
    case DType::e4m3: // of no buffer
    case DType::e5m2: break;
    }
    return {};
}

ir::Value<double> param_value(ir::Type type, std::uint64_t word) {
    if (type == ir::Type::real)
        return {.real = std::bit_cast<float>(static_cast<std::uint32_t>(word))};
    return {.boolean = word != 0, .integer = static_cast<std::int64_t>(word)};
}

} // namespace

MaskValues::MaskValues(const ir::Program& program, std::vector<std::int64_t> sizes,
                       std::span<const std::uint64_t> param_words,
                       std::span<const TensorView> views) {
    environment_.sizes = std::move(sizes);
    for (std::size_t i = 0; i < program.params.size(); ++i)
        environment_.params.push_back(param_value(program.params[i].type, param_words[i]));
    for (const TensorView& view : views) {
        auto array = std::make_unique<ir::BufferData>();
        array->extents.assign(view.shape.begin(), view.shape.begin() + view.rank);
        array->at = [view](std::span<const std::int64_t> indices) {
            std::int64_t offset = 0;
            for (std::size_t dim = 0; dim < indices.size(); ++dim)
                offset += indices[dim] * view.strides[dim];
            return element(view.dtype, static_cast<const std::byte*>(view.data) +
                                           offset * static_cast<std::int64_t>(size_of(view.dtype)));
        };
        environment_.buffers.push_back(array.get());
        arrays_.push_back(std::move(array));
    }
}

ir::Environment MaskValues::of_head(std::int64_t b, std::int64_t h) const {
    ir::Environment environment = environment_;
    environment.b = b;
    environment.h = h;
    environment.h_kv = h / (environment.sizes[ir::kH] / environment.sizes[ir::kHKv]);
    return environment;
}

} // namespace flexc::runtime
