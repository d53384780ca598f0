// The part of mod.cuh that a warp-specialized forward adds.
#pragma once

#include <string>
#include <string_view>

#include "cuda/expressions.h"
#include "passes/decompose.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Of the headers that this part needs.
inline constexpr std::string_view kForwardIncludes =
    "#include \"sm90/forward_layout.h\"\n#include \"sm90/score_form.h\"\n";

// The body takes what was computed before the kernel from its element.
void provide_expanded(Body& body, const Layout& layout, const passes::ScoreParts& parts);
std::vector<ir::NodeId> logit_roots(const passes::ScoreParts& parts);
std::string emit_logit_constants(const plan::KernelConfig& config, const passes::Mod& mod,
                                 const passes::ScoreParts& parts);
// After struct At.
std::string emit_logit_functions(const Layout& layout, const plan::KernelConfig& config,
                                 const passes::ScoreParts& parts, int mask_instructions);

} // namespace flexc::cuda
