#include "api/cuda_kernels.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <thread>
#include <utility>

#include "api/choose_candidate.h"
#include "common/arguments.h"
#include "common/tensor_maps.h"
#include "cuda/emit.h"
#include "cuda/emit_tiles.h"
#include "cuda/fill.h"
#include "cuda/nvrtc.h"
#include "plan/restrictions.h"
#include "support/guarded.h"
#include "support/log.h"
#include "support/text.h"

namespace flexc::api {

using plan::KernelConfig;

namespace {

// Makes the machine code of one kernel from its candidates.
class Making {
  public:
    // variant: the one whose main kernel this is; null for other kernels.
    Making(const plan::TargetProgram& program, std::span<const KernelConfig> candidates,
           const plan::Variant* variant)
        : program_(program), candidates_(candidates), variant_(variant) {}

    // The first candidate, with the identity that the cache knows it by.
    Result<CompiledKernel> first(cuda::Translation& translation) const {
        CompiledKernel one;
        use(one, candidates_.front());
        if (!program_.options().schedule.empty()) one.schedule = one.kernel.config.schedule;
        auto text = translate(one.kernel.config);
        if (!text) return text.error();
        translation = std::move(*text);
        one.id = identify(translation, program_.target().arch);
        return one;
    }

    // `first` from the cache. The entry stands under the source of the first choice, and says which
    // choice it became. Other builds of this version may have chosen otherwise: their code is not
    // for our configuration.
    std::optional<CompiledKernel> find(const CompiledKernel& first, cache::Store& store) const {
        const support::Log log(program_.options().log);
        auto entry = store.load(first.id.key, log);
        if (!entry) return {};
        auto found = read_entry(std::move(*entry));
        if (found && is_ours(*found, first)) {
            found->id = first.id;
            found->cached = true;
            return found;
        }
        log.warn("a kept {} is of another build of flexc and is made anew", first.kernel.info.name);
        store.discard(first.id.key, log); // else it would stay, and every process compile again
        return {};
    }

    Result<cuda::Translation> translate(const KernelConfig& config) const {
        return cuda::fill_template(config, mod_text(program_, config));
    }

    static void use(CompiledKernel& one, KernelConfig config) {
        runtime::CudaKernel& kernel = one.kernel;
        kernel.config = std::move(config);
        kernel.info.name = kernel.config.entry;
        kernel.info.reason = kernel.config.reason;
        kernel.info.schedule = kernel.config.schedule ? text_of(*kernel.config.schedule) : "";
    }

  private:
    bool is_ours(CompiledKernel& found, const CompiledKernel& first) const {
        const auto at = static_cast<std::size_t>(found.refused);
        if (found.schedule && variant_ != nullptr)
            use(found, plan::with_schedule(*variant_, *found.schedule));
        else if (!found.schedule && at < candidates_.size())
            use(found, candidates_[at]);
        else
            return false;
        if (found.refused == 0 && found.schedule == first.schedule)
            return found.made_of == first.id.source;
        const auto chosen = translate(found.kernel.config);
        return chosen && found.made_of == source_of(*chosen);
    }

    const plan::TargetProgram& program_;
    std::span<const KernelConfig> candidates_;
    const plan::Variant* variant_;
};

// Runs all tasks in parallel, one thread each: NVRTC can compile independent programs in parallel.
Result<void> run_all(const std::vector<std::function<Result<void>()>>& tasks) {
    std::vector<std::optional<Result<void>>> results(tasks.size());
    {
        std::vector<std::jthread> threads;
        threads.reserve(tasks.size());
        for (std::size_t i = 0; i < tasks.size(); ++i)
            threads.emplace_back([&, i] { results[i] = guarded(tasks[i]); });
    }
    for (std::optional<Result<void>>& result : results)
        if (!*result) return result->error(); // filled: the threads have ended
    return {};
}

Result<void> check_nvrtc_arguments(const passes::Mod& mod) {
    const auto nvrtc = cuda::nvrtc_info();
    if (!nvrtc) return nvrtc.error();
    return check_argument_bytes(mod, nvrtc->major * 1000 + nvrtc->minor * 10, "NVRTC");
}

bool is_same_kernel(const KernelConfig& one, const KernelConfig& other) {
    return one.kind == other.kind && one.template_path == other.template_path &&
           one.block.query_tile == other.block.query_tile &&
           one.block.key_tile == other.block.key_tile && one.has_block_mask == other.has_block_mask;
}

} // namespace

Result<plan::KernelPlan> plan_of(const plan::TargetProgram& program) {
    auto plan = plan::make_plan(program);
    if (!plan || !plan->block_mask) return plan;
    const cuda::TileFacts facts = cuda::tile_facts(program.mod());
    plan->block_mask_facts.query_facts = facts.of_queries;
    plan->block_mask_facts.key_facts = facts.of_keys;
    return plan;
}

std::string mod_text(const plan::TargetProgram& program, const KernelConfig& config) {
    const CompileOptions& options = program.options();
    const passes::DecomposedMod& decomposed = program.decomposed(config.decomposition);
    const bool is_whole = config.decomposition.of == plan::Decomposition::Of::none;
    return cuda::emit_mod(is_whole ? program.mod() : decomposed.mod,
                          is_whole ? passes::ScoreParts{} : decomposed.parts, config,
                          {.dtype = options.dtype,
                           .head_dim = options.head_dim,
                           .head_dim_v = options.head_dim_v,
                           .kv_dtype = options.kv_dtype,
                           .returns_max_scores = options.max_scores});
}

Result<CompiledKernel> compile_kernel(const plan::TargetProgram& program,
                                      std::span<const KernelConfig> candidates,
                                      const plan::Variant* variant, cache::Store& store,
                                      const support::Watch& watch) {
    const support::Log log(program.options().log);
    const std::string& arch = program.target().arch;
    const Making making(program, candidates, variant);
    cuda::Translation translation;
    auto made = making.first(translation);
    if (!made) return made.error();
    CompiledKernel& result = *made;
    runtime::CudaKernel& kernel = result.kernel;
    if (auto found = making.find(result, store)) return *std::move(found);
    if (auto checked = check_nvrtc_arguments(program.mod()); !checked) return checked.error();
    const auto attempt = [&](std::size_t at) -> Result<Attempt> {
        auto text = at == 0 ? Result(translation) : making.translate(candidates[at]);
        if (!text) return text.error();
        auto output = cuda::compile_cubin(*text, arch, watch);
        if (!output) return output.error();
        return Attempt{*std::move(text), *std::move(output)};
    };
    const auto has_room = [&] { return watch.has_room(); };
    auto choice = choose_candidate(candidates, {attempt, has_room}, log);
    if (!choice) return choice.error();
    Making::use(result, candidates[choice->at]);
    kernel.config.spills.tolerated = choice->tolerated_spills;
    result.refused = static_cast<int>(choice->at);
    cuda::NvrtcOutput& output = choice->attempt.output;
    kernel.info.compile_ms = output.milliseconds;
    kernel.info.shared_bytes = kernel.config.block.shared_bytes;
    kernel.info.spill_bytes = cuda::usage_of(output.kernels, kernel.config.entry).spill_store_bytes;
    for (const cuda::KernelUsage& usage : output.kernels) {
        kernel.info.registers = std::max(kernel.info.registers, usage.registers);
        kernel.info.shared_bytes += usage.shared_bytes;
        if (usage.name != kernel.config.entry)
            kernel.info.helper_spill_bytes =
                std::max(kernel.info.helper_spill_bytes, usage.spill_store_bytes);
    }
    kernel.cubin = std::move(output.cubin);
    result.made_of = source_of(choice->attempt.translation);
    store.publish(result.id.key, entry_of(result), log);
    return made;
}

Result<CompiledPass> compile_pass(const plan::TargetProgram& program, const plan::Variant& variant,
                                  cache::Store& store, const support::Watch& watch) {
    const plan::TargetProgram& own = plan::program_of(variant, program);
    // The other kernels are those for the main kernel's first candidate; they are made again if
    // another one is chosen.
    plan::PassPlan expected = plan::pass_of(program, variant, variant.candidates.front());
    std::vector<std::optional<CompiledKernel>> compiled(expected.kernels.size());
    std::vector<std::function<Result<void>()>> tasks;
    const auto compile_into = [&](std::optional<CompiledKernel>& to,
                                  std::span<const KernelConfig> candidates,
                                  const plan::Variant* of) -> Result<void> {
        auto one = compile_kernel(own, candidates, of, store, watch);
        if (!one) return one.error();
        to = std::move(*one);
        return {};
    };
    for (std::size_t i = 0; i < expected.kernels.size(); ++i)
        tasks.emplace_back([&, i] {
            if (i == expected.main) return compile_into(compiled[i], variant.candidates, &variant);
            return compile_into(compiled[i], std::span(&expected.kernels[i], 1), nullptr);
        });
    std::vector<std::optional<CompiledPass>> further(variant.further.size());
    for (std::size_t i = 0; i < further.size(); ++i)
        tasks.emplace_back([&, i]() -> Result<void> {
            auto one = compile_pass(program, variant.further[i], store, watch);
            if (!one) return one.error();
            further[i] = *std::move(one);
            return {};
        });
    if (auto done = run_all(tasks); !done) return done.error();

    const KernelConfig& main = compiled[expected.main]->kernel.config;
    if (auto checked = plan::check_chosen(program, variant, main); !checked) return checked.error();
    CompiledPass pass{plan::pass_of(program, variant, main), {}};
    for (std::size_t i = 0; i < pass.plan.kernels.size(); ++i) {
        const KernelConfig& config = pass.plan.kernels[i];
        const auto known = std::ranges::find_if(compiled, [&](const auto& one) {
            return one && is_same_kernel(one->kernel.config, config);
        });
        if (i == pass.plan.main) {
            pass.kernels.push_back(std::move(*compiled[expected.main]));
        } else if (known != compiled.end()) {
            pass.kernels.push_back(std::move(**known));
        } else {
            auto one = compile_kernel(own, std::span(&config, 1), nullptr, store, watch);
            if (!one) return one.error();
            pass.kernels.push_back(std::move(*one));
        }
    }
    for (std::optional<CompiledPass>& one : further) {
        plan::append(pass.plan, std::move(one->plan));
        std::ranges::move(one->kernels, std::back_inserter(pass.kernels));
    }
    return pass;
}

Result<CompiledPlan> compile_plan(const plan::TargetProgram& program, const plan::KernelPlan& plan,
                                  cache::Store& store, const support::Watch& watch) {
    CompiledPlan result;
    std::vector<std::function<Result<void>()>> tasks;
    tasks.emplace_back([&]() -> Result<void> {
        auto pass = compile_pass(program, plan.forward.front(), store, watch);
        if (!pass) return pass.error();
        result.forward = std::move(*pass);
        return {};
    });
    const auto compile_beside = [&](const std::optional<KernelConfig>& config,
                                    std::vector<CompiledKernel>& to) {
        if (!config) return;
        tasks.emplace_back([&, one_of = &*config, to = &to]() -> Result<void> {
            auto one = compile_kernel(program, std::span(one_of, 1), nullptr, store, watch);
            if (!one) return one.error();
            to->push_back(std::move(*one));
            return {};
        });
    };
    compile_beside(plan.block_mask, result.block_masks);
    compile_beside(plan.lengths, result.lengths);
    if (!plan.backward.empty())
        tasks.emplace_back([&]() -> Result<void> {
            auto pass = compile_pass(program, plan.backward.front(), store, watch);
            if (!pass) return pass.error();
            result.backward.push_back(std::move(*pass));
            return {};
        });
    if (auto done = run_all(tasks); !done) return done.error();
    return result;
}

Result<void> check_kernels(const plan::TargetProgram& program, cache::Store& store) {
    auto plan = plan_of(program);
    if (!plan) return plan.error();
    auto compiler = cuda::check_nvrtc(program.target().arch);
    if (compiler) compiler = check_nvrtc_arguments(program.mod());
    if (compiler) return {};
    // Without a compiler that can, every kernel must be in the cache or a pack.
    const auto is_kept = [&](const plan::TargetProgram& own,
                             std::span<const KernelConfig> candidates,
                             const plan::Variant* variant) {
        const Making making(own, candidates, variant);
        cuda::Translation translation;
        const auto first = making.first(translation);
        return first && making.find(*first, store).has_value();
    };
    for (const std::optional<KernelConfig>& config : {plan->block_mask, plan->lengths})
        if (config && !is_kept(program, std::span(&*config, 1), nullptr)) return compiler;
    const auto are_kept = [&](const plan::Variant& variant) {
        const plan::TargetProgram& own = plan::program_of(variant, program);
        const plan::PassPlan pass = plan::pass_of(program, variant, variant.candidates.front());
        for (std::size_t i = 0; i < pass.kernels.size(); ++i)
            if (!(i == pass.main ? is_kept(own, variant.candidates, &variant)
                                 : is_kept(own, std::span(&pass.kernels[i], 1), nullptr)))
                return false;
        return true;
    };
    for (const std::vector<plan::Variant>* variants : {&plan->forward, &plan->backward}) {
        if (variants->empty()) continue;
        const plan::Variant& variant = variants->front();
        if (!are_kept(variant) || !std::ranges::all_of(variant.further, are_kept)) return compiler;
    }
    return {};
}

Result<void> check_argument_bytes(const passes::Mod& mod, int version, std::string_view whose) {
    // Argument bytes besides the program's words: the most that any kernel takes, and padding.
    constexpr std::size_t kOthers = sizeof(AttentionArguments) + plan::kMostFamilyBytes +
                                    std::max({sizeof(BlockMaskArguments), sizeof(ForwardTensorMaps),
                                              sizeof(BackwardTensorMaps)}) +
                                    std::size_t{2} * 64;
    static_assert(kOthers + sizeof(std::uint64_t) * passes::kMaxArgumentWords <=
                  cuda::most_argument_bytes(12010));
    const std::size_t bytes = kOthers + sizeof(std::uint64_t) * passes::argument_slots(mod).size();
    const std::size_t most = cuda::most_argument_bytes(version);
    if (bytes <= most) return {};
    return Error{ErrorCode::limit,
                 formatted("the buffers, params and sizes that the program reads take {} bytes of "
                           "arguments; {} {}.{} allows {}: use fewer, or version 12.1 or later",
                           bytes, whose, version / 1000, version % 1000 / 10, most)};
}

} // namespace flexc::api
