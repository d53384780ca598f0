#include "cuda/emit_derivative.h"

#include <algorithm>

#include "cuda/arch/family_text.h"
#include "cuda/emit_dense_bias.h"
#include "cuda/emit_key_index_2d.h"
#include "cuda/policy.h"
#include "passes/dense_bias.h"
#include "passes/distance_value.h"
#include "plan/work.h"

namespace flexc::cuda {

using ir::NodeId;
using ir::Op;

namespace {

// Whether anything but the mask reads global memory for each element. Values by distance are looked
// up; staged reads and a copied dense bias are in shared memory.
bool scores_read_elements(const passes::Mod& mod, const plan::KernelConfig& config,
                          std::vector<NodeId> roots) {
    std::erase(roots, mod.mask);
    std::vector<NodeId> elsewhere = passes::distance_values(mod);
    const std::vector<NodeId> staged = staged_reads(mod, config);
    elsewhere.insert(elsewhere.end(), staged.begin(), staged.end());
    elsewhere.push_back(copied_bias(mod, config));
    return passes::reads_elements_beside(mod, roots, elsewhere);
}

} // namespace

bool is_of_d_scores(const passes::Mod& mod, const plan::KernelConfig& config,
                    const passes::ReadGradient& gradient) {
    if (gradient.is_weighted) return false;
    const passes::GradientSum sum = passes::gradient_sum(mod, gradient, config.sums);
    return passes::is_of_d_scores(sum) ||
           (sum == passes::GradientSum::dense_bias && passes::are_biases_of_scores(mod));
}

std::string emit_score_derivative(const passes::Mod& mod, const plan::KernelConfig& config,
                                  const std::vector<passes::ReadGradient>& gradients,
                                  const std::vector<NodeId>& roots) {
    Policy policy("ScoreDerivative");
    policy.constant("kIsWrittenOnce", config.form.writes_scores_once);
    if (!has_backward_policies(config)) return policy.text();
    const auto uses_score = [&](NodeId id) {
        return mod.dependence[id].has(analysis::Dependence::score);
    };
    const ir::Node& derivative = mod.program.graph[mod.d_score];
    policy.constant("kIsOne", derivative.op == Op::const_real && derivative.real == 1);
    policy.constant("kUsesScore", uses_score(mod.d_score));
    policy.constant("kIsCostly", plan::has_costly_derivative(mod));
    policy.constant("kPartialsUseScore",
                    std::ranges::any_of(gradients, [&](const passes::ReadGradient& gradient) {
                        return !is_of_d_scores(mod, config, gradient) &&
                               uses_score(gradient.partial);
                    }));
    policy.constant("kIsHiddenByMaskAlone",
                    mod.is_line_of_row && !config.form.has_long_scores &&
                        std::ranges::all_of(gradients, [&](const passes::ReadGradient& gradient) {
                            return gradient.is_line_of_row || mod.ranges.finite[gradient.partial];
                        }));
    policy.constant("kReadsElements", scores_read_elements(mod, config, roots));
    return policy.text();
}

} // namespace flexc::cuda
