// Results of the passes as stable text for people: the stages of `flexc explain`.
#pragma once

#include <span>
#include <string>

#include "dsl/diagnostic.h"
#include "passes/mod.h"

namespace flexc::passes {

std::string describe_ir(const Mod& mod);       // the simplified program
std::string describe_gradient(const Mod& mod); // derivatives of score_mod
std::string describe_mask(const Mod& mod);     // which elements can be visible
// Each read: what it uses, where, whether it is checked, and how its gradient is summed. kernels:
// the mods of those that share the gradients, in a plan of the program; none if one sums all.
std::string describe_dependence(const Mod& mod, std::span<const Mod> kernels = {});
// The class of a read, and why it is in no better one.
std::string describe_class(const Mod& mod, const CapturedRead& read);
// Hints about gradients that are added to global memory element by element, and what to write
// instead.
dsl::Diagnostics read_hints(const Mod& mod);

// A value in the language's own notation, shortened if long: "slopes[h] * (kv_idx - 1)".
std::string formula(const ir::Program& program, ir::NodeId id);

} // namespace flexc::passes
