// Decides which kernels compute a program, and how. It runs after the passes, which are independent
// of the device, and before kernels are emitted as text. All functions are pure.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/result.h"
#include "plan/pass.h"
#include "plan/target_program.h"
#include "plan/variants.h"

namespace flexc::plan {

// Returns the configurations of every family that can compute the request, best first.
std::vector<KernelConfig> candidates(const KernelRequest& request);
// Returns the ways in which a block of the forward may divide its work, flexc's own choice first;
// empty if there is only one.
std::vector<ForwardSchedule> forward_schedules(const KernelRequest& request);

struct KernelPlan {
    // Each variant serves more calls than the one before it, but for those by size, which come
    // after the first and are preferred where they apply. The first variant is compiled at once,
    // the others when plan() needs them.
    std::vector<Variant> forward, backward;
    std::optional<KernelConfig> block_mask; // the kernel that builds block masks
    BlockMaskFacts block_mask_facts;        // that it keeps
    std::optional<KernelConfig> lengths;    // the kernel that makes records of requests
};

// Returns what a user who compiles for this target should know; empty if there is nothing.
std::string_view warning_about(const Target& target);

// Returns the kernels of a program, or an error if the options ask for kernels that do not exist.
Result<KernelPlan> make_plan(const TargetProgram& program);

// Returns the pass of a variant whose main kernel is `main`, without Variant::further.
PassPlan pass_of(const TargetProgram& program, const Variant& variant, const KernelConfig& main);
// Adds the kernels and steps of one of Variant::further, before those that round gradients.
void append(PassPlan& pass, PassPlan further);
// Returns the tiles of a kernel's block mask; of_requests: the layout is not dense.
MaskTiling mask_tiling(const KernelConfig& kernel, bool of_requests);
// Returns the main kernel's configuration with another schedule.
KernelConfig with_schedule(const Variant& variant, const ForwardSchedule& schedule);

// Describes for people the first choice of each pass, its steps and its workspace.
std::string text_of(const KernelPlan& plan, const TargetProgram& program);

} // namespace flexc::plan
