#include "plan/dense_biases.h"

#include <algorithm>
#include <utility>

#include "passes/gradient_order.h"
#include "passes/gradient_sum.h"

namespace flexc::plan {

namespace {

CopiedBias copied_bias_of(const passes::Mod& mod, ir::NodeId read, bool is_gradient) {
    const std::vector<passes::ArgumentSlot> slots = passes::argument_slots(mod);
    const ir::Node& node = mod.program.graph[read];
    const auto word = [&](passes::ArgumentSlot slot) { return passes::word_of(slots, slot); };
    using enum passes::ArgumentSlot::Kind;
    CopiedBias bias;
    bias.data = word({is_gradient ? gradient_data : buffer_data, node.symbol});
    for (std::uint32_t dim = 0; dim < node.operands.size(); ++dim) {
        bias.extents.push_back(word({buffer_extent, node.symbol, dim}));
        bias.strides.push_back(
            word({is_gradient ? gradient_stride : buffer_stride, node.symbol, dim}));
        bias.by_query.push_back(passes::is_query_of_bias(mod, node.operands[dim]));
    }
    bias.element_bytes = size_of(is_gradient ? DType::f32 : mod.program.buffers[node.symbol].dtype);
    return bias;
}

} // namespace

CopiedBias copied_bias_of(const passes::Mod& mod, ir::NodeId read) {
    return copied_bias_of(mod, read, false);
}

std::vector<CopiedBias> tiled_biases(const passes::Mod& mod, const KernelConfig& config) {
    std::vector<CopiedBias> biases;
    const ir::NodeId bias = passes::dense_bias_of_score(mod);
    if (config.storage.bias_stages > 0 && bias != ir::kNoNode)
        biases.push_back(copied_bias_of(mod, bias, false));
    for (const passes::ReadGradient& gradient : mod.gradients)
        if (passes::gradient_sum(mod, gradient, config.sums) == passes::GradientSum::dense_bias)
            biases.push_back(copied_bias_of(mod, gradient.read, true));
    return biases;
}

namespace {

// Returns the gradients of shifted reads whose every element exactly one block stores. With a block
// mask there are none, because a block does not know which tiles other blocks skip.
std::vector<StoredGradients::Lines> stored_lines(const passes::Mod& mod,
                                                 const KernelConfig& config) {
    std::vector<StoredGradients::Lines> lines;
    if (!config.sums.sums_shifts || config.has_block_mask) return lines;
    for (const passes::ReadGradient& gradient : mod.gradients)
        if (passes::gradient_sum(mod, gradient, config.sums) == passes::GradientSum::shifted &&
            passes::has_whole_lines(mod, gradient))
            lines.push_back(
                {mod.program.graph[gradient.read].symbol,
                 std::ranges::find(mod.shifted_reads, gradient.read, &passes::ShiftedRead::read)
                     ->by_key});
    return lines;
}

} // namespace

StoredGradients stored_gradients(const passes::Mod& mod, const KernelConfig& config) {
    if (auto lines = stored_lines(mod, config); !lines.empty()) return {{}, {}, std::move(lines)};
    const auto sharing = passes::sharing_of_biases(mod);
    if (!config.sums.adds_bias_gradients || !sharing) return {};
    StoredGradients stored{{}, *sharing};
    for (const passes::ReadGradient& gradient : mod.gradients)
        if (passes::gradient_sum(mod, gradient, config.sums) == passes::GradientSum::dense_bias)
            stored.buffers.push_back(mod.program.graph[gradient.read].symbol);
    return stored;
}

bool StoredGradients::holds(std::uint32_t buffer) const {
    return std::ranges::find(buffers, buffer) != buffers.end();
}

} // namespace flexc::plan
