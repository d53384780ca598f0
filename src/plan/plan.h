// Which kernels compute a program, and how: between the passes, which know no device, and the text
// of kernels. Pure: values in, values out.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flexc/result.h"
#include "plan/pass.h"
#include "plan/program.h"

namespace flexc::plan {

// Configurations of every family that can do the request, best first.
std::vector<KernelConfig> candidates(const KernelRequest& request);
// How a block of the forward may divide its work, flexc's own choice first; empty where there is
// only one way.
std::vector<ForwardSchedule> forward_schedules(const KernelRequest& request);

// What calls a variant of a pass takes.
enum class Calls : std::uint8_t {
    usual,            // tensors that TMA can walk, where kernels need that; aligned dense biases
    short_sequences,  // many that are no longer than KernelRequest::most_rows
    unaligned_biases, // the same, but for rows of dense biases
    any               // tensors of any strides and alignment, any scale and offset
};

// One way to compute a pass. Its kernels are compiled for the best candidate that does not spill.
struct Variant {
    Calls calls = Calls::usual;
    KernelRequest request;
    std::vector<KernelConfig> candidates; // of the main kernel
};

struct KernelPlan {
    // For ever more calls, but that those for short sequences go before all. The first is compiled
    // at once, the others when plan() needs them.
    std::vector<Variant> forward, backward;
    std::optional<KernelConfig> block_mask; // that builds them
    std::optional<KernelConfig> lengths;    // that makes records of requests
};

// What a user should know who compiles for this target; empty: nothing.
std::string_view warning_about(const Target& target);

// An error where the options ask for kernels that there are none of.
Result<KernelPlan> make_plan(const Program& program);

// The pass of a variant whose main kernel is `main`.
PassPlan pass_of(const Program& program, const Variant& variant, const KernelConfig& main);
// Of the block mask of a kernel; of_requests: of layouts other than dense.
MaskTiling mask_tiling(const KernelConfig& kernel, bool of_requests);
// The main kernel's configuration with another schedule.
KernelConfig with_schedule(const Variant& variant, const ForwardSchedule& schedule);

// An error where every candidate of kernels that were demanded spilled. Usual calls alone are held
// to what was demanded: others have kernels of their own.
Result<void> check_demands(const Program& program, const Variant& variant,
                           const KernelConfig& main);

// For people: the first choice of each pass, its steps and its workspace.
std::string text_of(const KernelPlan& plan, const Program& program);

} // namespace flexc::plan
