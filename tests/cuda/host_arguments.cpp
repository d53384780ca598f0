#include "host_arguments.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/reciprocal.h"
#include "ir/interp.h"
#include "passes/gradient_order.h"

namespace flexc::test {

namespace {

using Kind = passes::ArgumentSlot::Kind;

template <typename T> void store(std::uint8_t* to, T value) {
    std::memcpy(to, &value, sizeof value);
}

// For values that are exact in f16.
std::uint16_t half_bits(double value) {
    if (value == 0) return 0;
    int exponent = 0;
    const double fraction = std::frexp(std::abs(value), &exponent); // in [0.5, 1)
    const auto mantissa = static_cast<unsigned>(std::lround(fraction * 2048)) & 1023;
    const unsigned sign = value < 0 ? 0x8000 : 0;
    return static_cast<std::uint16_t>(sign | static_cast<unsigned>(exponent + 14) << 10 | mantissa);
}

void store_element(DType dtype, double real, std::int64_t integer, std::uint8_t* to) {
    switch (dtype) {
    case DType::f64: return store(to, real);
    case DType::f32: return store(to, static_cast<float>(real));
    case DType::f16: return store(to, half_bits(real));
    case DType::bf16: {
        const auto narrow = static_cast<float>(real);
        std::uint32_t bits = 0;
        std::memcpy(&bits, &narrow, sizeof bits);
        return store(to, static_cast<std::uint16_t>(bits >> 16));
    }
    case DType::i64: return store(to, integer);
    case DType::i32: return store(to, static_cast<std::int32_t>(integer));
    case DType::i16: return store(to, static_cast<std::int16_t>(integer));
    default: return store(to, static_cast<std::int8_t>(integer));
    }
}

std::int64_t elements_of(const ir::BufferData& data) {
    std::int64_t elements = 1;
    for (const std::int64_t extent : data.extents)
        elements *= extent;
    return elements;
}

// Dense in reverse order of dims, every `step`-th element.
std::vector<std::int64_t> reversed_strides(const ir::BufferData& data, std::int64_t step) {
    std::vector<std::int64_t> strides;
    for (const std::int64_t extent : data.extents) {
        strides.push_back(step);
        step *= extent;
    }
    return strides;
}

std::vector<std::int64_t> row_strides(const ir::BufferData& data, std::int64_t gap) {
    std::vector<std::int64_t> strides(data.extents.size());
    std::int64_t step = 1;
    for (std::size_t dim = data.extents.size(); dim-- > 0;) {
        strides[dim] = step;
        step = dim + 1 == data.extents.size() ? data.extents[dim] + gap : step * data.extents[dim];
    }
    return strides;
}

std::int64_t position(const ir::BufferData& data, const std::vector<std::int64_t>& strides,
                      std::int64_t element) {
    std::int64_t result = 0;
    for (std::size_t dim = data.extents.size(); dim-- > 0;) {
        result += element % data.extents[dim] * strides[dim];
        element /= data.extents[dim];
    }
    return result;
}

} // namespace

HostArguments::HostArguments(const passes::Mod& mod, const ir::Environment& environment,
                             std::optional<Rows> rows)
    : rows_(rows) {
    const ir::Program& program = mod.program;
    arrays_.resize(program.buffers.size());
    wants_gradient_.resize(program.buffers.size());
    for (std::uint32_t buffer = 0; buffer < program.buffers.size(); ++buffer)
        wants_gradient_[buffer] = passes::has_gradient(mod, buffer);
    extents_ = environment.buffers;
    const std::vector<std::uint32_t> exact =
        mod.deterministic ? passes::exact_gradients(mod) : std::vector<std::uint32_t>{};
    for (const std::uint32_t buffer : exact)
        arrays_[buffer].sums.resize(
            static_cast<std::size_t>(elements_of(*environment.buffers[buffer])));
    for (std::size_t i = 0; i < program.buffers.size(); ++i)
        fill(program.buffers[i], *environment.buffers[i], arrays_[i]);
    for (const passes::ArgumentSlot& slot : passes::argument_slots(mod))
        words_.push_back(word(slot, program, environment));
}

void HostArguments::fill(const ir::Buffer& buffer, const ir::BufferData& data, Array& array) const {
    constexpr std::int64_t kStep = 2;
    const std::int64_t elements = elements_of(data);
    const std::size_t size = size_of(buffer.dtype);
    array.strides = rows_ ? row_strides(data, rows_->gap) : reversed_strides(data, kStep);
    array.first = rows_ ? rows_->behind : 0;
    array.gradient_strides = rows_ ? row_strides(data, 0) : reversed_strides(data, 1);
    array.gradient.resize(static_cast<std::size_t>(elements));
    // Values between the elements are wrong on purpose.
    const std::int64_t end = array.first + position(data, array.strides, elements - 1) + 1;
    array.bytes.assign(static_cast<std::size_t>(std::max(end, elements * kStep)) * size, 0x77);
    for (std::int64_t i = 0; i < elements; ++i) {
        const auto index = static_cast<std::size_t>(i);
        const bool is_real = ir::type_of(buffer.dtype) == ir::Type::real;
        store_element(
            buffer.dtype, is_real ? data.reals[index] : 0, is_real ? 0 : data.integers[index],
            array.bytes.data() +
                static_cast<std::size_t>(array.first + position(data, array.strides, i)) * size);
    }
}

std::uint64_t HostArguments::word(const passes::ArgumentSlot& slot, const ir::Program& program,
                                  const ir::Environment& environment) {
    switch (slot.kind) {
    case Kind::buffer_data:
        return reinterpret_cast<std::uint64_t>(arrays_[slot.index].bytes.data() +
                                               static_cast<std::size_t>(arrays_[slot.index].first) *
                                                   size_of(program.buffers[slot.index].dtype));
    case Kind::buffer_extent:
        return static_cast<std::uint64_t>(environment.buffers[slot.index]->extents[slot.dim]);
    case Kind::buffer_stride:
        return static_cast<std::uint64_t>(arrays_[slot.index].strides[slot.dim]);
    case Kind::gradient_data:
        if (!arrays_[slot.index].sums.empty())
            return reinterpret_cast<std::uint64_t>(arrays_[slot.index].sums.data());
        return reinterpret_cast<std::uint64_t>(arrays_[slot.index].gradient.data());
    case Kind::gradient_stride:
        return static_cast<std::uint64_t>(arrays_[slot.index].gradient_strides[slot.dim]);
    case Kind::param: {
        const ir::Value<double>& value = environment.params[slot.index];
        if (program.params[slot.index].type == ir::Type::boolean) return value.boolean ? 1 : 0;
        if (program.params[slot.index].type == ir::Type::integer)
            return static_cast<std::uint64_t>(value.integer);
        const auto narrow = static_cast<float>(value.real);
        std::uint32_t bits = 0;
        std::memcpy(&bits, &narrow, sizeof bits);
        return bits;
    }
    case Kind::size: return static_cast<std::uint64_t>(environment.sizes[slot.index]);
    case Kind::reciprocal:
        return std::bit_cast<std::uint64_t>(
            reciprocal_of(ir::evaluate_integer(program, slot.index, environment)));
    case Kind::divisor_sign:
        return static_cast<std::uint64_t>(
            std::int64_t{sign_of(ir::evaluate_integer(program, slot.index, environment))});
    case Kind::out_of_range: return reinterpret_cast<std::uint64_t>(&flag_);
    case Kind::first_kv_head:
    case Kind::sequences: // programs here are dense
    case Kind::key_numbers:
    case Kind::key_table_size: return 0;
    }
    return 0;
}

std::vector<std::vector<double>> HostArguments::empty_gradients() const {
    std::vector<std::vector<double>> result(arrays_.size());
    for (std::size_t i = 0; i < arrays_.size(); ++i)
        if (wants_gradient_[i]) result[i].resize(arrays_[i].gradient.size());
    return result;
}

void HostArguments::clear_gradients(float value) {
    for (Array& array : arrays_) {
        std::fill(array.gradient.begin(), array.gradient.end(), value);
        std::fill(array.sums.begin(), array.sums.end(), exact::Sum{});
    }
}

float HostArguments::gradient(std::size_t buffer, std::size_t element) const {
    const Array& array = arrays_[buffer];
    const auto at = static_cast<std::size_t>(
        position(*extents_[buffer], array.gradient_strides, static_cast<std::int64_t>(element)));
    return array.sums.empty() ? array.gradient[at]
                              : std::bit_cast<float>(exact::rounded(array.sums[at]));
}

std::optional<std::size_t> element_of(const ir::Program& program, ir::NodeId read,
                                      const ir::Environment& at) {
    const ir::Node& node = program.graph[read];
    const std::vector<std::int64_t>& extents = at.buffers[node.symbol]->extents;
    std::int64_t element = 0;
    for (std::size_t dim = 0; dim < extents.size(); ++dim) {
        const std::int64_t index = ir::evaluate_integer(program, node.operands[dim], at);
        if (index < 0 || index >= extents[dim]) return {};
        element = element * extents[dim] + index;
    }
    return static_cast<std::size_t>(element);
}

} // namespace flexc::test
