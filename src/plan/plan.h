// Decides which kernels compute a program, and how. It runs after the passes, which are independent
// of the device, and before kernels are emitted as text. All functions are pure.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "flexc/result.h"
#include "plan/pass.h"
#include "plan/program.h"

namespace flexc::plan {

// Returns the configurations of every family that can compute the request, best first.
std::vector<KernelConfig> candidates(const KernelRequest& request);
// Returns the ways in which a block of the forward may divide its work, flexc's own choice first;
// empty if there is only one.
std::vector<ForwardSchedule> forward_schedules(const KernelRequest& request);

// Which calls a variant of a pass can serve.
enum class Calls : std::uint8_t {
    usual,            // tensors that TMA can address, if kernels need that; aligned dense biases
    short_sequences,  // many sequences of at most SequenceForm::most_rows rows
    few_queries,      // few queries, with keys that blocks divide: are_few_faster()
    unaligned_biases, // like usual, but rows of dense biases need not be aligned
    any               // tensors of any strides and alignment, any scale and offset
};

// Whether a variant is faster for calls of some sizes, which others can serve too.
constexpr bool is_by_size(Calls calls) {
    return calls == Calls::short_sequences || calls == Calls::few_queries;
}

// One way to compute a pass. Its kernels are compiled for the best candidate that does not spill.
struct Variant {
    Calls calls = Calls::usual;
    KernelRequest request;
    std::vector<KernelConfig> candidates; // of the main kernel
    // Where several kernels share the gradients of buffers: the program of this one's, else null,
    // and the kernels that sum the others' after it. BufferGradients::are_alone of these.
    std::shared_ptr<const Program> program = nullptr;
    std::vector<Variant> further = {};
};

// Returns the program of a variant's kernels.
inline const Program& program_of(const Variant& variant, const Program& of_plan) {
    return variant.program != nullptr ? *variant.program : of_plan;
}

struct KernelPlan {
    // Each variant serves more calls than the one before it, except that those for short sequences
    // and for few queries come first. The first variant is compiled at once, the others when plan()
    // needs them.
    std::vector<Variant> forward, backward;
    std::optional<KernelConfig> block_mask; // the kernel that builds block masks
    BlockMaskFacts block_mask_facts;        // that it keeps
    std::optional<KernelConfig> lengths;    // the kernel that makes records of requests
};

// Returns what a user who compiles for this target should know; empty if there is nothing.
std::string_view warning_about(const Target& target);

// Returns why few queries of dense tensors have no kernels of their own; empty if they have.
std::string_view why_no_few_kernels(const Program& program);

// Returns the kernels of a program, or an error if the options ask for kernels that do not exist.
Result<KernelPlan> make_plan(const Program& program);

// Returns the pass of a variant whose main kernel is `main`, without Variant::further.
PassPlan pass_of(const Program& program, const Variant& variant, const KernelConfig& main);
// Adds the kernels and steps of one of Variant::further, before those that round gradients.
void append(PassPlan& pass, PassPlan further);
// Returns the tiles of a kernel's block mask; of_requests: the layout is not dense.
MaskTiling mask_tiling(const KernelConfig& kernel, bool of_requests);
// Returns the main kernel's configuration with another schedule.
KernelConfig with_schedule(const Variant& variant, const ForwardSchedule& schedule);

// Returns an error if the options demand kernels of which every candidate spilled. Only variants
// for usual calls are checked, because others have kernels of their own.
Result<void> check_demands(const Program& program, const Variant& variant,
                           const KernelConfig& main);

// Describes for people the first choice of each pass, its steps and its workspace.
std::string text_of(const KernelPlan& plan, const Program& program);

} // namespace flexc::plan
