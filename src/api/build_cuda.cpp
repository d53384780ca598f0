#include <algorithm>
#include <ranges>

#include "api/backend.h"
#include "api/context.h"
#include "api/cuda_kernels.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "passes/describe.h"
#include "passes/inside_calls.h"
#include "runtime/cuda_executable.h"
#include "support/key_layout.h"
#include "support/log.h"
#include "support/text.h"

namespace flexc::api {

namespace {

using SharedProgram = std::shared_ptr<const plan::TargetProgram>;

Result<SharedProgram> make_program(const passes::Mod& mod, const CompileOptions& options,
                                   std::string_view arch) {
    auto target = plan::target_of(arch);
    if (!target) return target.error();
    if (options.kv_dtype && options.dtype == DType::f32)
        return Error{ErrorCode::unsupported,
                     formatted("k and v of type {} beside q of type f32 are read by the CPU's "
                               "kernels alone: use f16 or bf16 for q on a GPU",
                               name(*options.kv_dtype))};
    return SharedProgram(std::make_shared<plan::TargetProgram>(mod, options, *target));
}

// Returns the architecture of a device; an error if it cannot run the program.
Result<std::string> arch_of_device(const passes::Mod& mod, int device) {
    auto info = cuda::device_info(device);
    if (!info) return info.error();
    if (info->arch < 80)
        return Error{ErrorCode::unsupported,
                     formatted("{} has compute capability {}.{}; 8.0 is the least", info->name,
                               info->arch / 10, info->arch % 10)};
    if (const auto driver = cuda::driver_info())
        if (auto checked = check_argument_bytes(mod, driver->version, "the driver's CUDA");
            !checked)
            return checked.error();
    return plan::arch_name(info->arch);
}

runtime::CudaPass loaded_by(CompiledPass pass) {
    runtime::CudaPass result{std::move(pass.plan), {}};
    for (CompiledKernel& one : pass.kernels)
        result.kernels.push_back(std::move(one.kernel));
    return result;
}

// Returns the variants of a pass; those after the first are compiled when plan() needs them. The
// kernel keeps them, perhaps longer than the caller's log exists.
runtime::CudaVariants variants_of(const SharedProgram& program, CompiledPass first,
                                  const std::vector<plan::Variant>& variants) {
    CompileOptions later = program->options();
    later.log = {};
    later.cancel = {};
    const SharedProgram silent =
        std::make_shared<plan::TargetProgram>(program->mod(), later, program->target());
    runtime::CudaVariants result;
    result.first = loaded_by(std::move(first));
    for (const plan::Variant& variant : variants)
        result.all.push_back({variant.calls, variant.request.sequences.least_rows,
                              variant.request.sequences.most_rows});
    result.compile = [silent, variants](std::size_t index) -> Result<runtime::CudaPass> {
        const CompileOptions& options = silent->options();
        const auto folder = Context::instance().stores.get(options.cache);
        auto pass =
            compile_pass(*silent, variants[index], *folder, Context::instance().watch(options));
        if (!pass) return pass.error();
        return loaded_by(std::move(*pass));
    };
    return result;
}

// Visits the kernels in the order in which users see them.
template <typename Visit> void for_each_kernel(CompiledPlan& compiled, Visit visit) {
    for (CompiledKernel& one : compiled.forward.kernels)
        visit(one);
    for (std::vector<CompiledKernel>* beside : {&compiled.block_masks, &compiled.lengths})
        for (CompiledKernel& one : *beside)
            visit(one);
    for (CompiledPass& pass : compiled.backward)
        for (CompiledKernel& one : pass.kernels)
            visit(one);
}

// Whether a variant after the first is for calls of these kinds.
bool is_asked(plan::Calls variant, OfflineCalls calls) {
    switch (variant) {
    case plan::Calls::short_sequences: return calls.short_sequences;
    case plan::Calls::few_queries: return calls.few_queries;
    default: return calls.any_layout;
    }
}

} // namespace

Result<void> check_cuda(const passes::Mod& mod, const CompileOptions& options,
                        std::string_view arch, cache::Store& store) {
    auto name = arch.empty() ? arch_of_device(mod, options.device.index)
                             : Result<std::string>(std::string(arch));
    if (!name) return name.error();
    auto program = make_program(mod, options, *name);
    if (!program) return program.error();
    return check_kernels(**program, store);
}

Result<Built> build_cuda(const passes::Mod& mod, const CompileOptions& options, int device,
                         cache::Store& store, const support::Watch& watch) {
    auto arch = arch_of_device(mod, device);
    if (!arch) return arch.error();
    auto program = make_program(mod, options, *arch);
    if (!program) return program.error();
    auto plan = plan_of(**program);
    if (!plan) return plan.error();
    auto compiled = compile_plan(**program, *plan, store, watch);
    if (!compiled) return compiled.error();
    Built built;
    for_each_kernel(*compiled, [&](const CompiledKernel& one) {
        built.from_cache = built.from_cache && one.cached;
        built.bytes += one.kernel.cubin.size();
    });
    runtime::CudaPlan loaded;
    loaded.forward = variants_of(*program, std::move(compiled->forward), plan->forward);
    for (CompiledPass& pass : compiled->backward)
        loaded.backward = variants_of(*program, std::move(pass), plan->backward);
    for (CompiledKernel& one : compiled->block_masks)
        loaded.block_mask = std::move(one.kernel);
    loaded.block_mask_facts = plan->block_mask_facts;
    for (CompiledKernel& one : compiled->lengths)
        loaded.lengths = std::move(one.kernel);
    auto executable = runtime::load_cuda(
        std::move(loaded),
        {.device = device,
         .dtype = options.dtype,
         .head_dim = options.head_dim,
         .head_dim_v = options.head_dim_v,
         .is_ragged = options.query_layout == Layout::ragged && options.key_layout != Layout::dense,
         .keys_are_in_order = support::key_layout(options.key_layout).is_in_order,
         .report_out_of_range = options.report_out_of_range});
    if (!executable) return executable.error();
    built.executable = std::move(*executable);
    return built;
}

Result<OfflineResult> build_cubins(const passes::Mod& mod, const CompileOptions& options,
                                   std::string_view arch, OfflineCalls calls, cache::Store& store,
                                   const support::Watch& watch) {
    auto program = make_program(mod, options, arch);
    if (!program) return program.error();
    if (const std::string_view warning = plan::warning_about((*program)->target());
        !warning.empty())
        support::Log(options.log).warn("{}", warning);
    auto plan = plan_of(**program);
    if (!plan) return plan.error();
    auto compiled = compile_plan(**program, *plan, store, watch);
    if (!compiled) return compiled.error();
    OfflineResult result{.cached = true};
    std::vector<cache::Digest> known; // variants share kernels
    const auto add = [&](CompiledKernel& one) {
        if (std::ranges::find(known, one.id.key.digest) != known.end()) return;
        known.push_back(one.id.key.digest);
        result.cached = result.cached && one.cached;
        std::string file = cache::encode_entry(one.id.key, entry_of(one));
        result.kernels.push_back({.info = std::move(one.kernel.info),
                                  .bytes = std::move(one.kernel.cubin),
                                  .pack_name = cache::entry_name(one.id.key.digest),
                                  .pack_bytes = std::move(file)});
    };
    for_each_kernel(*compiled, add);
    for (const std::vector<plan::Variant>* variants : {&plan->forward, &plan->backward})
        for (const plan::Variant& variant : *variants | std::views::drop(1)) {
            if (!is_asked(variant.calls, calls)) continue;
            auto pass = compile_pass(**program, variant, store, watch);
            if (!pass) return pass.error();
            for (CompiledKernel& one : pass->kernels)
                add(one);
        }
    return result;
}

std::string explain_dependence(const passes::Mod& mod, const CompileOptions& options) {
    std::vector<passes::Mod> kernels;
    const auto program = make_program(mod, options, "sm_90a");
    const auto plan = program ? plan::make_plan(**program) : program.error();
    const auto is_of_inside_calls = [&](const std::vector<plan::Variant>& variants) {
        return !variants.empty() &&
               passes::is_of_inside_calls(plan::program_of(variants.front(), **program).mod());
    };
    const bool is_inside =
        plan && (is_of_inside_calls(plan->forward) || is_of_inside_calls(plan->backward));
    if (plan && !plan->backward.empty() && !plan->backward.front().further.empty()) {
        const plan::Variant& first = plan->backward.front();
        kernels.push_back(plan::program_of(first, **program).mod());
        for (const plan::Variant& further : first.further)
            kernels.push_back(plan::program_of(further, **program).mod());
    }
    return passes::describe_dependence(is_inside ? mod.inside_calls.front() : mod, kernels);
}

Result<std::string> explain_cuda(const passes::Mod& mod, const CompileOptions& options,
                                 std::string_view arch) {
    auto program = make_program(mod, options, arch);
    if (!program) return program.error();
    auto plan = plan_of(**program);
    if (!plan) return plan.error();
    std::string text;
    // The header of one backward kernel contains everything that those of the others do, but for
    // the kernels that share its gradients.
    const auto add = [&](const plan::Variant& variant) {
        const plan::KernelConfig& config = variant.candidates.front();
        text += formatted("// For {}:\n\n{}", config.template_path,
                          mod_text(plan::program_of(variant, **program), config));
    };
    for (const std::vector<plan::Variant>* variants : {&plan->forward, &plan->backward})
        if (!variants->empty()) {
            add(variants->front());
            std::ranges::for_each(variants->front().further, add);
        }
    return text;
}

Result<std::string> explain_plan(const passes::Mod& mod, const CompileOptions& options,
                                 std::string_view arch) {
    auto program = make_program(mod, options, arch);
    if (!program) return program.error();
    auto plan = plan_of(**program);
    if (!plan) return plan.error();
    return plan::text_of(*plan, **program);
}

} // namespace flexc::api
