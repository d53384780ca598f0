#include "cuda/emit_dense_bias.h"

#include <algorithm>

#include "cuda/emit_derivative.h"
#include "cuda/emit_shifted_reads.h"
#include "cuda/names.h"
#include "cuda/policy.h"
#include "passes/dense_bias.h"
#include "passes/gradient_sum.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::kNoNode;
using ir::NodeId;
using Kind = passes::ArgumentSlot::Kind;

namespace {

void add_functions(Policy& policy, const SymbolTable& symbols, NodeId read) {
    if (read == kNoNode) return;
    const ir::Node& node = symbols.node(read);
    const auto last = static_cast<std::uint32_t>(node.operands.size() - 1);
    const DType dtype = symbols.mod().program.buffers[node.symbol].dtype;
    Body address(symbols, passes::Place::element, "at.");
    address.compute(node.operands);
    address.line(formatted("return {} + {};", address.argument({Kind::buffer_data, node.symbol}),
                           address.offset(read, Kind::buffer_stride)));
    Body step(symbols, passes::Place::launch, "");
    step.line(formatted("return {};", step.argument({Kind::buffer_stride, node.symbol, last})));
    policy.member(formatted("    using Element = {};\n", element_type(dtype)));
    policy.function("const Element* address(const At& at)", address);
    policy.function("long long step(const Arguments& arguments)", step);
}

void add_bound(Policy& policy, const SymbolTable& symbols, std::string_view called,
               const std::vector<NodeId>& bounds) {
    if (bounds.empty()) return;
    Body body(symbols, passes::Place::element, "at.");
    body.compute(bounds);
    body.line(formatted("return {};", unbracketed(body.text_as(bounds.front(), CType::wide))));
    policy.function(std::string(called), body);
}

} // namespace

std::string emit_dense_bias(const SymbolTable& symbols, NodeId read, const analysis::Band& band) {
    const passes::Mod& mod = symbols.mod();
    Policy policy("DenseBias");
    add_functions(policy, symbols, read);
    policy.constant("kIsSharedByHeads", read != kNoNode &&
                                            mod.program.graph[read].type == ir::Type::integer &&
                                            !mod.dependence[read].has(analysis::Dependence::h));
    policy.constant("kHasBand", read != kNoNode && band.found());
    add_bound(policy, symbols, "long long low(const At& at)", band.low);
    add_bound(policy, symbols, "long long high(const At& at)", band.high);
    return policy.text();
}

NodeId copied_bias(const passes::Mod& mod, const plan::KernelConfig& config) {
    return config.storage.bias_stages > 0 ? passes::copied_bias_of_score(mod) : kNoNode;
}

bool has_shifted_bias(const passes::Mod& mod, const plan::KernelConfig& config) {
    const NodeId bias = copied_bias(mod, config);
    return bias != kNoNode && bias == mod.shifted_bias.read;
}

std::string emit_dense_bias(const SymbolTable& symbols, const plan::KernelConfig& config,
                            const std::vector<passes::ReadGradient>& gradients) {
    const passes::Mod& mod = symbols.mod();
    const NodeId bias = copied_bias(mod, config);
    std::vector<NodeId> derivatives = {mod.d_score}, dense_reads;
    if (bias != kNoNode) dense_reads.push_back(bias);
    int first = -1;
    for (std::size_t i = gradients.size(); i-- > 0;) {
        derivatives.push_back(gradients[i].partial);
        if (passes::gradient_sum(mod, gradients[i], config.sums) != passes::GradientSum::dense_bias)
            continue;
        first = static_cast<int>(i);
        dense_reads.push_back(gradients[i].read);
    }
    const std::vector<NodeId> needed = ir::reachable(mod.program.graph, derivatives);
    const bool is_shared = std::ranges::any_of(dense_reads, [&](NodeId read) {
        return !mod.dependence[read].has(analysis::Dependence::b);
    });
    const auto sharing = passes::sharing_of_biases(mod).value_or(passes::BiasSharing{});
    const bool is_shifted = has_shifted_bias(mod, config);
    Policy policy("DenseBias");
    if (is_shifted)
        policy.member("    using Element = ShiftedRead<0>::Element;\n");
    else
        add_functions(policy, symbols, bias);
    policy.constant("kStages", config.storage.bias_stages);
    policy.constant("kIsShifted", is_shifted);
    policy.constant("kIsByKey", is_shifted && mod.shifted_bias.by_key);
    policy.constant("kIsUsedByDerivatives",
                    bias != kNoNode && std::ranges::find(needed, bias) != needed.end());
    policy.constant("kIsSharedByBatches", is_shared);
    policy.constant("kGradient", first, -1);
    policy.constant("kGradientIsDScore", passes::are_biases_of_scores(mod), true);
    policy.constant("kIsNarrow", passes::are_biases_narrow(mod), true);
    policy.constant("kBatchesMeet", sharing.batches);
    policy.constant("kHeadsMeet", sharing.heads);
    policy.constant("kGroupMeets", sharing.group);
    if (!is_shifted) return policy.text();
    return "#define FLEXC_HAS_SHIFTED_READS\n" +
           emit_shifted_reads(symbols, {mod.shifted_bias}, kNoNode) + policy.text();
}

} // namespace flexc::cuda
