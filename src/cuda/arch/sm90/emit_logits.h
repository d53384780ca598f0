// The part of mod.cuh that a warp-specialized forward adds.
#pragma once

#include <string>
#include <string_view>

#include "cuda/expressions.h"
#include "passes/decompose.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Includes of the headers that this part of mod.cuh needs.
inline constexpr std::string_view kForwardIncludes =
    "#include \"sm90/forward_layout.h\"\n#include \"sm90/score_form.h\"\n";

// Makes the body take values that were computed or copied ahead of it (values by key and by
// distance, shifted reads) from members of `at` instead of computing them.
void provide_expanded(Body& body, const Layout& layout, const passes::ScoreParts& parts);
std::vector<ir::NodeId> logit_roots(const passes::ScoreParts& parts);
std::string emit_logit_constants(const plan::KernelConfig& config, const passes::Mod& mod,
                                 const passes::ScoreParts& parts);
// The functions that compute logits; they come after struct At in mod.cuh.
std::string emit_logit_functions(const Layout& layout, const plan::KernelConfig& config,
                                 const passes::ScoreParts& parts, int mask_instructions);

} // namespace flexc::cuda
