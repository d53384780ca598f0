// The part of mod.cuh that Hopper's forward kernel adds.
#pragma once

#include <string>

#include "cuda/config.h"
#include "cuda/expressions.h"
#include "cuda/fold.h"

namespace flexc::cuda {

// The body takes what was computed before the kernel from its element.
void provide_expanded(Body& body, const Layout& layout, const ScoreParts& parts);
std::vector<ir::NodeId> logit_roots(const ScoreParts& parts);
std::string emit_logit_constants(const KernelConfig& config, const FoldedMod& folded);
// After struct At.
std::string emit_logit_functions(const Layout& layout, const ScoreParts& parts);

} // namespace flexc::cuda
