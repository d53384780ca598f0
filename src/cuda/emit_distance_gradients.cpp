#include "cuda/emit_distance_gradients.h"

#include "cuda/policy.h"
#include "passes/distance_value.h"
#include "passes/grid_gradient.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;

namespace {

// Body of a function that returns one of the values by its index, or `otherwise` for kNoNode.
Body values_of(const SymbolTable& symbols, const std::vector<NodeId>& values,
               std::string_view otherwise) {
    Body body(symbols, Place::element, "at.");
    std::vector<NodeId> computed = values;
    std::erase(computed, ir::kNoNode);
    body.compute(computed);
    for (std::size_t i = 0; i < values.size(); ++i)
        if (values[i] != ir::kNoNode)
            body.line(
                formatted("if (index == {}) return {};", i, unbracketed(body.text(values[i]))));
    body.line(formatted("return {};", otherwise));
    return body;
}

} // namespace

std::string emit_distance_values(const SymbolTable& symbols, const plan::KernelConfig& config) {
    const std::vector<NodeId> values = passes::distance_values(symbols.mod());
    Policy policy("TabulatedVectors");
    policy.constant("kByDistance", static_cast<int>(values.size()));
    if (config.kind == plan::KernelKind::tabulate)
        policy.member(member_function("float distance_value(const At& at, int index)",
                                      values_of(symbols, values, "0")));
    return policy.text();
}

std::string emit_distance_factors(const SymbolTable& symbols,
                                  const std::vector<passes::ReadGradient>& gradients,
                                  passes::TileSums tile) {
    std::vector<NodeId> factors;
    for (const passes::ReadGradient& gradient : gradients)
        factors.push_back(passes::gradient_sum(symbols.mod(), gradient, tile) ==
                                  passes::GradientSum::distance
                              ? passes::distance_factor(symbols.mod(), gradient)
                              : ir::kNoNode);
    return device_function("float distance_factor(const At& at, int index)",
                           values_of(symbols, factors, "1"));
}

std::string emit_grid_gradients(const SymbolTable& symbols, const plan::KernelConfig& config) {
    if (!config.sums.sums_grids) return "";
    const passes::Mod& mod = symbols.mod();
    Policy policy("GridGradients");
    policy.constant("kPlaces", static_cast<int>(mod.digit_places.size()));
    const auto numbers = [&](std::string_view name, std::int64_t passes::DigitPlace::*of) {
        std::vector<int> values;
        for (const passes::DigitPlace& place : mod.digit_places)
            values.push_back(static_cast<int>(place.*of));
        policy.member(numbers_function(name, values));
    };
    numbers("width", &passes::DigitPlace::width);
    numbers("query_offset", &passes::DigitPlace::q_offset);
    numbers("key_offset", &passes::DigitPlace::kv_offset);
    const analysis::Assumptions conditions = passes::grid_conditions(mod);
    policy.constant("kHasConditions", !conditions.empty());
    for (const bool of_key : {false, true}) {
        Body body(symbols, Place::element, "at.");
        std::string all;
        for (const auto& [condition, value] : conditions) {
            const bool uses_key = mod.dependence[condition].has(analysis::Dependence::kv);
            if (uses_key != of_key) continue;
            body.compute({condition});
            all += (all.empty() ? "" : " && ") +
                   formatted("{}{}", value ? "" : "!", body.text(condition));
        }
        if (all.empty()) continue;
        body.line("return " + all + ";");
        policy.function(formatted("bool takes_{}(const At& at)", of_key ? "key" : "query"), body);
    }
    return policy.text();
}

} // namespace flexc::cuda
