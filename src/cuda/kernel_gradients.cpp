#include "cuda/kernel_gradients.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "cuda/arch/family_text.h"
#include "passes/table_gradient.h"
#include "passes/term_gradient.h"

namespace flexc::cuda {

using ir::NodeId;

std::vector<passes::ReadGradient> gradients_of(const passes::Mod& mod,
                                               const plan::KernelConfig& config) {
    using enum passes::GradientSum;
    const auto is_added = [&](const passes::ReadGradient& gradient) {
        const bool by_rows = has_backward_policies(config);
        const passes::GradientSum sum = passes::gradient_sum(mod, gradient, config.sums);
        switch (config.kind) {
        case plan::KernelKind::delta: return by_rows && sum == row;
        case plan::KernelKind::backward_dkdv:
        case plan::KernelKind::backward_fused:
        case plan::KernelKind::tabulate:
        case plan::KernelKind::fold:
            return !by_rows || (sum != row && sum != passes::GradientSum::terms &&
                                !passes::is_of_terms_by_distance(mod, gradient));
        default: return false;
        }
    };
    std::vector<passes::ReadGradient> added =
        config.sums.sums_few_entries ? passes::summed_by_entries(mod) : mod.gradients;
    std::erase_if(added, std::not_fn(is_added));
    return added;
}

std::vector<passes::ReadGradient> terms_by_distance(const passes::Mod& mod) {
    std::vector<passes::ReadGradient> terms;
    std::ranges::copy_if(mod.gradients, std::back_inserter(terms),
                         [&](const passes::ReadGradient& gradient) {
                             return passes::is_of_terms_by_distance(mod, gradient);
                         });
    return terms;
}

std::vector<passes::ReadGradient> terms_of_kernel(const passes::Mod& mod,
                                                  const plan::KernelConfig& config) {
    const bool is_fused = config.kind == plan::KernelKind::backward_fused;
    if (has_backward_policies(config))
        return is_fused ? passes::terms_by_tile(mod) : std::vector<passes::ReadGradient>{};
    return is_fused || config.kind == plan::KernelKind::backward_dkdv
               ? passes::terms_by_generic_tile(mod)
               : std::vector<passes::ReadGradient>{};
}

std::map<NodeId, std::vector<passes::ReadGradient>>
by_counter(const passes::Mod& mod, const std::vector<passes::ReadGradient>& gradients) {
    std::map<NodeId, std::vector<passes::ReadGradient>> sorted;
    for (const passes::ReadGradient& gradient : gradients)
        if (const NodeId counter = mod.counters[gradient.read]; counter != ir::kNoNode)
            sorted[counter].push_back(gradient);
    return sorted;
}

bool has_sum(const passes::Mod& mod, const plan::KernelConfig& config,
             const std::vector<passes::ReadGradient>& gradients, passes::GradientSum sum) {
    return std::ranges::any_of(gradients, [&](const passes::ReadGradient& gradient) {
        return passes::gradient_sum(mod, gradient, config.sums) == sum;
    });
}

std::vector<NodeId> gradient_roots(const passes::Mod& mod,
                                   const std::vector<passes::ReadGradient>& gradients,
                                   std::initializer_list<NodeId passes::ReadGradient::*> factors) {
    std::vector<NodeId> roots;
    for (const passes::ReadGradient& gradient : gradients) {
        for (const auto factor : factors)
            if (gradient.*factor != ir::kNoNode) roots.push_back(gradient.*factor);
        const auto& indices = mod.program.graph[gradient.read].operands;
        roots.insert(roots.end(), indices.begin(), indices.end());
    }
    return roots;
}

} // namespace flexc::cuda
