#include "runtime/mask_values.h"

#include <algorithm>
#include <array>
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

std::int64_t visible_keys(const passes::Mod& mod, const detail::PlanState& plan) {
    const Sizes& sizes = plan.sizes;
    const analysis::Band& band = mod.band;
    if (!mod.program.is_dense() || band.clamps || !band.found()) return sizes.kv_len;
    const ir::Environment environment =
        MaskValues(mod.program, plan.size_values, plan.param_words, {}).of_head(0, 0);
    constexpr std::int64_t kMost = std::int64_t{1} << 40; // positions are below it
    const auto is_known = [&](ir::NodeId bound) {
        const std::vector<ir::NodeId> needs = ir::reachable(mod.program.graph, std::array{bound});
        return mod.dependence[bound].bits == 0 && std::ranges::none_of(needs, [&](ir::NodeId id) {
                   return mod.program.graph[id].op == ir::Op::read;
               });
    };
    const auto visit = [&](const std::vector<ir::NodeId>& bounds, const auto& use) {
        for (const ir::NodeId bound : bounds)
            if (is_known(bound))
                use(std::clamp(ir::evaluate_integer(mod.program, bound, environment), -kMost,
                               kMost));
    };
    // Positions, as the program sees them.
    std::int64_t first = plan.kv_offset, end = first + sizes.kv_len;
    visit(band.low, [&](std::int64_t low) { first = std::max(first, plan.q_offset + low); });
    visit(band.high,
          [&](std::int64_t high) { end = std::min(end, plan.q_offset + sizes.q_len + high); });
    return std::max<std::int64_t>(end - first, 0);
}

} // namespace flexc::runtime
