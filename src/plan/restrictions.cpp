#include "plan/restrictions.h"

#include <algorithm>
#include <span>

#include "passes/gradient_order.h"
#include "passes/gradient_sum.h"
#include "plan/arch/family.h"
#include "plan/target_program.h"
#include "plan/work.h"
#include "support/key_layout.h"
#include "support/text.h"

namespace flexc::plan {

namespace {

// Returns all families except the last, whose kernels every GPU can run.
std::span<const Family* const> specialized_families() {
    return families().first(families().size() - 1);
}

// Returns the specialized family of the architecture, or the first one if it has none.
const Family& specialized_family(int arch) {
    const auto all = specialized_families();
    const auto own =
        std::ranges::find_if(all, [&](const Family* family) { return family->runs_on(arch); });
    return own == all.end() ? *all.front() : **own;
}

// Whether the options demand a kernel that is specialized for the architecture.
bool demands_specialized(const CompileOptions& options, KernelKind kind) {
    return kind == KernelKind::forward ? options.forward_kernel == ForwardKernel::specialized
                                       : options.backward_kernel == BackwardKernel::specialized;
}

Error not_there(KernelKind kind, std::string_view why) {
    return {ErrorCode::unsupported,
            formatted("the specialized {} kernel was asked for: {}",
                      kind == KernelKind::forward ? "forward" : "backward",
                      why.empty() ? "every tile of it spills registers" : why)};
}

// Returns why a kernel with unrolled elements should not add gradients in memory element by
// element; empty if it may.
std::string_view why_not_by_element(const passes::Mod& mod) {
    if (std::ranges::any_of(mod.gradients, [&](const passes::ReadGradient& gradient) {
            return mod.dependence[gradient.read].has(analysis::Dependence::score);
        }))
        return "an index of a learned read uses the score";
    const passes::TileSums tile = passes::fused_sums(mod);
    if (passes::count_few_entries(mod) > 0 &&
        std::ranges::any_of(mod.gradients, [&](const passes::ReadGradient& gradient) {
            return gradient.is_of_table &&
                   passes::gradient_sum(mod, gradient, tile) == passes::GradientSum::element;
        }))
        return "elements would wait for each other at entries of a table";
    return passes::adds_many_by_element(mod) ? "memory adds up several gradients of each element"
                                             : "";
}

// Returns why specialized kernels cannot have these layouts; empty if they can.
std::string_view why_not_layouts(const TargetProgram& program, KernelKind kind) {
    const ir::Program& ir = program.mod().program;
    if (kind == KernelKind::forward && !program.request(kind).sequences.scattered_in.empty())
        return "";
    if (const support::KeyLayout& keys = support::key_layout(ir.key_layout); !keys.is_in_order)
        return keys.why_scattered;
    return ir.query_layout == ir.key_layout ? "" : "only queries, or only keys, are ragged";
}

// Whether calls of some sizes have kernels of their own: many short sequences, of which a block
// computes whole ones, and few queries. Memory is the bottleneck of both. Not if the options ask
// for a kernel, or for results that do not depend on the rest of the batch.
bool has_kernels_by_size(const TargetProgram& program, bool is_automatic) {
    const CompileOptions& options = program.options();
    return is_automatic && options.schedule.empty() && !options.batch_invariant &&
           program.mod().program.is_dense() && !is_large(program.mod());
}

} // namespace

std::string_view why_generic(const TargetProgram& program, KernelKind kind) {
    const CompileOptions& options = program.options();
    if (const std::string_view why = why_not_layouts(program, kind); !why.empty()) return why;
    if (options.kv_dtype) return "keys and values have eight bits";
    if (kind == KernelKind::forward ? options.forward_kernel == ForwardKernel::generic
                                    : options.backward_kernel == BackwardKernel::generic)
        return "the generic kernel was asked for";
    if (kind == KernelKind::backward_fused && passes::adds_terms_by_element(program.mod()))
        return "some gradient is of the terms of a sum, which are many for each element";
    return kind == KernelKind::backward_fused ? why_not_by_element(program.mod()) : "";
}

std::string_view why_not_in_order(const TargetProgram& program) {
    const passes::Mod& mod = program.mod();
    if (const std::string_view why = why_not_layouts(program, KernelKind::backward_fused);
        !why.empty())
        return why;
    if (program.options().backward_kernel == BackwardKernel::generic)
        return "generic kernels were asked for";
    if (program.needs_block_mask()) return "tiles come from a block mask";
    if (passes::adds_terms_by_element(mod)) return "the terms of a sum have gradients";
    if (const std::string_view why = why_not_by_element(mod); !why.empty()) return why;
    if (passes::has_dense_gradient(mod))
        return "heads take turns at the gradient of a buffer of q and kv";
    const KernelRequest fused = program.request(KernelKind::backward_fused);
    return specialized_family(fused.arch).why_not(fused);
}

std::string_view why_no_few_kernels(const TargetProgram& program) {
    const bool is_automatic = program.options().forward_kernel == ForwardKernel::automatic;
    if (program.needs_block_mask())
        return "tiles come from a block mask, which has those of other kernels";
    if (has_kernels_by_size(program, is_automatic)) return "";
    return "the program, or what the options ask for, leaves no choice by size";
}

bool has_short_kernels(const TargetProgram& program, bool is_automatic) {
    return has_kernels_by_size(program, is_automatic) && !program.options().kv_dtype;
}

Result<void> check_request(const CompileOptions& options, const KernelRequest& request) {
    if (!demands_specialized(options, request.kind)) return {};
    const std::string_view why = specialized_family(request.arch).why_not(request);
    if (!why.empty()) return not_there(request.kind, why);
    return {};
}

Result<void> check_chosen(const TargetProgram& program, const Variant& variant,
                          const KernelConfig& main) {
    if (variant.calls != Calls::usual || !demands_specialized(program.options(), main.kind) ||
        main.family == specialized_family(program.target().number).name)
        return {};
    return not_there(main.kind, "");
}

} // namespace flexc::plan
