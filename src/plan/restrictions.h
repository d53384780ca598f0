// Which kernels a program cannot have, whatever their tiles are, and what the options demand.
#pragma once

#include <string_view>

#include "flexc/result.h"
#include "plan/variants.h"

namespace flexc::plan {

class TargetProgram;

// Returns why only the generic kernels can be used, apart from the families' own reasons; empty if
// others can.
std::string_view why_generic(const TargetProgram& program, KernelKind kind);
// Returns why a fused kernel would not produce the same bits on every run; empty if it would. Only
// kernels of some families add to dq in a fixed order, and these cannot sum gradients head by head.
std::string_view why_not_in_order(const TargetProgram& program);
// Returns why few queries of dense tensors have no kernels of their own; empty if they have.
std::string_view why_no_few_kernels(const TargetProgram& program);
// Whether many short sequences have kernels of their own. is_automatic: the options ask for no
// kernel.
bool has_short_kernels(const TargetProgram& program, bool is_automatic);

// Returns an error if the options demand a kernel that the request rules out.
Result<void> check_request(const CompileOptions& options, const KernelRequest& request);
// Returns an error if they demand kernels of which every candidate spilled, so that `main` is
// another. Only variants for usual calls are checked, because others have kernels of their own.
Result<void> check_chosen(const TargetProgram& program, const Variant& variant,
                          const KernelConfig& main);

} // namespace flexc::plan
