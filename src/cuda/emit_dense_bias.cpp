#include "cuda/emit_dense_bias.h"

#include <algorithm>

#include "cuda/emit_derivative.h"
#include "cuda/names.h"
#include "passes/dense_bias.h"
#include "passes/gradient_sum.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::kNoNode;
using ir::NodeId;
using Kind = passes::ArgumentSlot::Kind;

std::string emit_bias_functions(const Layout& layout, NodeId read) {
    if (read == kNoNode)
        return "using BiasElement = Element;\n"
               "__device__ inline const BiasElement* bias_address(const At&) { return nullptr; "
               "}\n"
               "__device__ inline long long bias_step(const Arguments&) { return 0; }\n\n";
    const ir::Node& node = layout.node(read);
    const auto last = static_cast<std::uint32_t>(node.operands.size() - 1);
    const DType dtype = layout.mod().program.buffers[node.symbol].dtype;
    Body address(layout, passes::Place::element, "at.");
    address.compute(node.operands);
    address.line(formatted("return {} + {};", address.argument({Kind::buffer_data, node.symbol}),
                           address.offset(read, Kind::buffer_stride)));
    Body step(layout, passes::Place::launch, "");
    step.line(formatted("return {};", step.argument({Kind::buffer_stride, node.symbol, last})));
    return formatted("using BiasElement = {};\n"
                     "__device__ inline const BiasElement* bias_address(const At& at) {{\n{}}}\n\n"
                     "__device__ inline long long bias_step(const Arguments& arguments) "
                     "{{\n{}}}\n\n",
                     element_type(dtype), address.statements(), step.statements());
}

NodeId copied_bias(const passes::Mod& mod, const plan::KernelConfig& config) {
    return config.bias_stages > 0 ? passes::dense_bias_of_score(mod) : kNoNode;
}

std::string emit_dense_bias_constants(const passes::Mod& mod, const plan::KernelConfig& config,
                                      const std::vector<passes::ReadGradient>& gradients) {
    const NodeId bias = copied_bias(mod, config);
    std::vector<NodeId> derivatives = {mod.d_score}, dense_reads;
    if (bias != kNoNode) dense_reads.push_back(bias);
    int first = -1;
    for (std::size_t i = gradients.size(); i-- > 0;) {
        derivatives.push_back(gradients[i].partial);
        if (passes::gradient_sum(mod, gradients[i], tile_sums(config)) !=
            passes::GradientSum::dense_bias)
            continue;
        first = static_cast<int>(i);
        dense_reads.push_back(gradients[i].read);
    }
    const std::vector<NodeId> needed = ir::reachable(mod.program.graph, derivatives);
    const bool is_shared = std::ranges::any_of(dense_reads, [&](NodeId read) {
        return !mod.dependence[read].has(analysis::Dependence::b);
    });
    const auto sharing = passes::sharing_of_biases(mod).value_or(passes::BiasSharing{});
    return formatted(
        "constexpr int kDScoresStages = {}, kBiasStages = {}, kDenseBiasGradient = {};\n"
        "constexpr bool kDenseBiasIsOfScores = {}, kDenseBiasIsNarrow = {};\n"
        "constexpr bool kDerivativesUseBias = {}, kBatchesShareDenseBias = {};\n"
        "constexpr bool kBatchesMeet = {}, kHeadsMeet = {}, kGroupMeets = {};\n",
        config.d_scores_stages, config.bias_stages, first, passes::are_biases_of_scores(mod),
        passes::are_biases_narrow(mod),
        bias != kNoNode && std::ranges::find(needed, bias) != needed.end(), is_shared,
        sharing.batches, sharing.heads, sharing.group);
}

} // namespace flexc::cuda
