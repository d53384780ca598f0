#include "cuda/emit_read_gradients.h"

#include <algorithm>

#include "cuda/kernel_gradients.h"
#include "cuda/policy.h"
#include "plan/work.h"
#include "support/text.h"

namespace flexc::cuda {

using ir::NodeId;
using passes::Place;

namespace {

// Returns the index of the gradient whose elements have a tile of their own, which all weighted
// gradients share; -1 if there is none.
int weighted_gradient(const plan::KernelConfig& config,
                      const std::vector<passes::ReadGradient>& gradients) {
    const auto first = std::ranges::find_if(gradients, &passes::ReadGradient::is_weighted);
    const bool exists =
        (config.sums.sums_tables || config.sums.weighs_distances) && first != gradients.end();
    return exists ? static_cast<int>(first - gradients.begin()) : -1;
}

// Whether the addresses of gradients that elements add themselves, which are written out for each
// element and gradient, are too long for that.
bool has_long_addresses(const SymbolTable& symbols, const plan::KernelConfig& config,
                        const std::vector<passes::ReadGradient>& gradients) {
    std::vector<passes::ReadGradient> by_element;
    for (const passes::ReadGradient& gradient : gradients)
        if (passes::gradient_sum(symbols.mod(), gradient, config.sums) ==
            passes::GradientSum::element)
            by_element.push_back(gradient);
    Body addresses(symbols, Place::element, "at.");
    addresses.compute(gradient_roots(symbols.mod(), by_element, {}));
    return addresses.instructions() > plan::kMostWrittenOut;
}

} // namespace

std::string emit_read_gradients(const SymbolTable& symbols, const plan::KernelConfig& config,
                                const std::vector<passes::ReadGradient>& gradients,
                                bool come_from_elements) {
    std::string sums, finite;
    Body each(symbols, Place::element, "at.");
    each.compute(gradient_roots(symbols.mod(), gradients, {}));
    for (std::size_t i = 0; i < gradients.size(); ++i) {
        sums +=
            formatted("i == {} ? Sum::{} : ", i,
                      passes::name(passes::gradient_sum(symbols.mod(), gradients[i], config.sums)));
        if (symbols.mod().ranges.finite[gradients[i].partial])
            finite += formatted("i == {} || ", i);
        each.line(
            formatted("if (i == {}) return {};", i, each.gradient_address(gradients[i].read)));
    }
    each.line("return nullptr;");
    Policy policy("ReadGradients");
    policy.constant("kComeFromElements", come_from_elements);
    policy.constant("kAreAlone", config.gradients_are_alone);
    policy.constant("kQuerySums", config.storage.query_sums);
    policy.constant(
        "kSumsDistances",
        has_sum(symbols.mod(), config, gradients, passes::GradientSum::distance) ||
            (config.kind != plan::KernelKind::delta && !terms_by_distance(symbols.mod()).empty()));
    policy.constant("kWeighted", weighted_gradient(config, gradients), -1);
    policy.constant("kStageRows", config.storage.stages_rows, true);
    std::string called;
    if (!gradients.empty()) {
        policy.member(formatted("    static constexpr __device__ Sum sum_of(int i) {{\n"
                                "        return {}Sum::element;\n    }}\n"
                                "    static constexpr __device__ bool is_finite(int i) {{\n"
                                "        return {}false;\n    }}\n",
                                sums, finite));
        const std::string_view type = symbols.mod().deterministic ? "exact::Sum*" : "float*";
        const std::string signature = formatted("{} address(const At& at, int i)", type);
        if (has_long_addresses(symbols, config, gradients)) {
            const Parameter which[] = {{"int", "i"}};
            called = called_element_function(type, "gradient_address", which, each);
            policy.member(member_function(signature, "    return gradient_address(at, i);\n"));
        } else {
            policy.function(signature, each);
        }
    }
    return called + policy.text();
}

std::string emit_row_gradients(const SymbolTable& symbols,
                               const std::vector<passes::ReadGradient>& gradients) {
    Body partial(symbols, Place::element, "at.");
    for (std::size_t i = 0; i < gradients.size(); ++i)
        partial.line(formatted("if (gradient == {}) return {};", i,
                               unbracketed(partial.text(gradients[i].partial))));
    partial.line("return 0;");
    return device_function("float row_partial(const At& at, int gradient)", partial);
}

} // namespace flexc::cuda
