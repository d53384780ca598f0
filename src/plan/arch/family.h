// A family of architectures: which kernels it has, what these cannot do, their configurations, and
// the steps of a pass with them. Everything that is peculiar to it is in its folder.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "plan/kernel.h"
#include "plan/pass.h"
#include "plan/target.h"

namespace flexc::plan {

class TargetProgram;

struct Family {
    std::string_view name;   // "sm90"
    std::string_view called; // "Hopper"
    bool (*runs_on)(int arch);
    // Its kernels use instructions that other architectures lack, for which code is compiled only
    // by names of architectures that end in "a".
    bool has_own_instructions = false;
    // Returns advice to print for a user who compiles for this target; empty if there is none.
    std::string_view (*warning)(const Target& target);
    // Returns why this family's kernels cannot compute the request; empty if they can. Called for
    // the forward and for the backward kernels that compute dk and dv.
    std::string_view (*why_not)(const KernelRequest& request);
    // Returns the configurations that can compute the request, best first. is_last_resort:
    // candidates of other families come before these, which are compiled only if all of those are
    // refused.
    std::vector<KernelConfig> (*candidates)(const KernelRequest& request, bool is_last_resort);
    // Returns the ways in which a block of the forward may divide its work, the family's own choice
    // first; null if the family has only one way.
    std::vector<ForwardSchedule> (*schedules)(const KernelRequest& request);
    // Builds the pass that has `main`, one of the candidates, as its main kernel.
    PassPlan (*forward)(const TargetProgram& program, const KernelConfig& main);
    // null: the family has a forward alone.
    PassPlan (*backward)(const TargetProgram& program, const KernelConfig& main);
    // Describes for people, in indented lines, what KernelConfig::of_family holds; null: nothing.
    std::string (*describe)(const KernelConfig& config);
};

// In the order of families.def.
std::span<const Family* const> families();
const Family& family_of(const KernelConfig& config);
bool is_generic(const KernelConfig& config); // of the last family, or of none

// Dynamic shared memory that one block may have, in bytes.
int shared_memory_limit(int arch);

constexpr int round_up_16(int x) { return (x + 15) / 16 * 16; }
// Columns of a row in matrix instructions, and in panels of 64 columns in shared memory.
constexpr int padded_columns(int columns) { return round_up_16(columns); }
constexpr int panels(int columns) { return (columns + 63) / 64; }

} // namespace flexc::plan
