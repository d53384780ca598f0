// Machine code for the kernels of a plan, from the cache or the compiler.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "api/kernel_entry.h"
#include "cache/store.h"
#include "flexc/result.h"
#include "plan/plan.h"
#include "support/watch.h"

namespace flexc::api {

// Like make_plan(), with facts about the mask that are known only from the kernels' text.
Result<plan::KernelPlan> plan_of(const plan::TargetProgram& program);

std::string mod_text(const plan::TargetProgram& program, const plan::KernelConfig& config);

// Compiles the first candidate that does not spill. variant: the one whose main kernel this is;
// null for other kernels.
Result<CompiledKernel> compile_kernel(const plan::TargetProgram& program,
                                      std::span<const plan::KernelConfig> candidates,
                                      const plan::Variant* variant, cache::Store& store,
                                      const support::Watch& watch = {});

// Kernels in the order of PassPlan::kernels.
struct CompiledPass {
    plan::PassPlan plan;
    std::vector<CompiledKernel> kernels;
};
Result<CompiledPass> compile_pass(const plan::TargetProgram& program, const plan::Variant& variant,
                                  cache::Store& store, const support::Watch& watch);

// The first variant of each pass, and the builder of block masks if there is one.
struct CompiledPlan {
    CompiledPass forward;
    std::vector<CompiledPass> backward;               // none or one
    std::vector<CompiledKernel> block_masks, lengths; // none or one
};
Result<CompiledPlan> compile_plan(const plan::TargetProgram& program, const plan::KernelPlan& plan,
                                  cache::Store& store, const support::Watch& watch);

// Returns the errors of compile_plan() that can be found without running a compiler.
Result<void> check_kernels(const plan::TargetProgram& program, cache::Store& store);

// Fails if the compiler or driver of this version does not accept kernels with as many argument
// bytes as the program needs.
Result<void> check_argument_bytes(const passes::Mod& mod, int version, std::string_view whose);

} // namespace flexc::api
