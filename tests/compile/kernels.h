// From a program's text to a cubin, for tests that need no GPU.
#pragma once

#include <string>
#include <string_view>

#include "api/cuda_kernels.h"
#include "flexc/result.h"
#include "front/compile_text.h"
#include "passes/pipeline.h"

namespace flexc::test {

struct KernelCase {
    std::string mod; // name in the report
    std::string text;
    plan::KernelKind kind = plan::KernelKind::forward;
    std::string arch = "sm_90a";
    DType dtype = DType::bf16;
    ForwardKernel forward_kernel = ForwardKernel::generic;
    BackwardKernel backward_kernel = BackwardKernel::generic;
    int head_dim = 64;
    int head_dim_v = 64;
    bool deterministic = false;
};

inline Result<passes::Mod> lower_text(const std::string& text, int head_dim, int head_dim_v,
                                      bool backward, bool report = false,
                                      bool deterministic = false) {
    front::Output output = front::compile_text({.source = {"<test>", text}});
    if (!output.program) return Error{ErrorCode::syntax, output.rendered};
    return passes::lower(std::move(*output.program), {.backward = backward,
                                                      .report_out_of_range = report,
                                                      .deterministic = deterministic,
                                                      .head_dim = head_dim,
                                                      .head_dim_v = head_dim_v});
}

// The kernel of that kind, in whichever variant has one.
inline Result<api::CompiledKernel> compile_kind(const plan::TargetProgram& program,
                                                plan::KernelKind kind, cache::Store& store) {
    const auto plan = api::plan_of(program);
    if (!plan) return plan.error();
    if (kind == plan::KernelKind::block_mask && plan->block_mask)
        return api::compile_kernel(program, std::span(&*plan->block_mask, 1), nullptr, store);
    for (const std::vector<plan::Variant>* variants : {&plan->forward, &plan->backward})
        for (const plan::Variant& variant : *variants) {
            const plan::PassPlan pass = plan::pass_of(program, variant, variant.candidates.front());
            const plan::TargetProgram& own = plan::program_of(variant, program);
            if (pass.kernels[pass.main].kind == kind)
                return api::compile_kernel(own, variant.candidates, &variant, store);
            for (const plan::KernelConfig& config : pass.kernels)
                if (config.kind == kind)
                    return api::compile_kernel(own, std::span(&config, 1), nullptr, store);
        }
    return Error{ErrorCode::internal, "no variant has a kernel of this kind"};
}

inline Result<api::CompiledKernel> compile_case(const KernelCase& one) {
    auto mod = lower_text(one.text, one.head_dim, one.head_dim_v,
                          one.kind != plan::KernelKind::forward, false, one.deterministic);
    if (!mod) return mod.error();
    const auto target = plan::target_of(one.arch);
    if (!target) return target.error();
    const bool is_forward = one.kind == plan::KernelKind::forward;
    CompileOptions options;
    options.dtype = one.dtype;
    options.forward_kernel = one.forward_kernel;
    options.backward_kernel = one.backward_kernel;
    if (one.backward_kernel == BackwardKernel::generic &&
        (one.kind == plan::KernelKind::backward_dkdv || one.kind == plan::KernelKind::backward_dq))
        options.backward_kernel = BackwardKernel::split;
    options.gradient_type = GradientType::buffer;
    options.backward = !is_forward;
    options.head_dim = one.head_dim;
    options.head_dim_v = one.head_dim_v;
    options.deterministic = one.deterministic;
    options.cache = {.memory = false, .disk = false};
    const auto store = cache::Store::open(options.cache);
    const plan::TargetProgram program(std::move(*mod), std::move(options), *target);
    return compile_kind(program, one.kind, *store);
}

// A program with gradients for Hopper, in bf16, and its plan.
struct PlannedProgram {
    PlannedProgram(const std::string& text, int head_dim)
        : program(*lower_text(text, head_dim, head_dim, true),
                  {.head_dim = head_dim, .head_dim_v = head_dim}, *plan::target_of("sm_90a")),
          plan(*api::plan_of(program)) {}

    Result<api::CompiledKernel> compile(const plan::Variant& variant) const {
        const auto store = cache::Store::open({.memory = false, .disk = false});
        return api::compile_kernel(plan::program_of(variant, program), variant.candidates, &variant,
                                   *store);
    }

    plan::TargetProgram program;
    plan::KernelPlan plan;
};

} // namespace flexc::test
