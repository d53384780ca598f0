#include <algorithm>
#include <functional>

#include "api/backend.h"
#include "api/context.h"
#include "api/cuda_kernels.h"
#include "api/schedules.h"
#include "cuda/driver.h"
#include "cuda/nvrtc.h"
#include "passes/gradient_order.h"
#include "passes/gradient_sum.h"
#include "runtime/cuda_executable.h"
#include "support/text.h"

namespace flexc::api {

namespace {

Preference preference_for(runtime::Substitute what) {
    if (what == runtime::Substitute::any_layout) return {.generic = true};
    return {.copies_matrices = false};
}

// Kept by the kernel, when the caller's log may be gone.
std::function<Result<runtime::CudaKernel>(cuda::KernelKind, runtime::Substitute)>
substitute_compiler(const passes::Mod& mod, const CompileOptions& options, const Target& target) {
    CompileOptions later = options;
    later.log = {};
    return [mod, later, target](cuda::KernelKind kind,
                                runtime::Substitute what) -> Result<runtime::CudaKernel> {
        const auto folder = Context::instance().stores.get(later.cache);
        auto one = compile_kernel(mod, later, kind, target, *folder, preference_for(what));
        if (!one) return one.error();
        return std::move(one->kernel);
    };
}

// What stands in for a kernel of Hopper. The fused kernels of other GPUs add to dq in any order.
cuda::KernelKind generic_kind(cuda::KernelKind kind, const CompileOptions& options) {
    using enum cuda::KernelKind;
    if (options.deterministic && kind == backward_fused) return backward_dkdv;
    if (options.deterministic && kind == convert) return backward_dq;
    return kind;
}

// The words of arguments that name exact sums.
std::vector<runtime::ExactGradient> exact_gradient_words(const passes::Mod& mod) {
    std::vector<runtime::ExactGradient> result;
    if (!mod.deterministic) return result;
    const std::vector<passes::ArgumentSlot> slots = passes::argument_slots(mod);
    for (const std::uint32_t buffer : passes::exact_gradients(mod)) {
        const passes::ArgumentSlot slot{passes::ArgumentSlot::Kind::gradient_data, buffer};
        const auto word = std::ranges::find(slots, slot) - slots.begin();
        result.push_back({buffer, static_cast<std::size_t>(word)});
    }
    return result;
}

bool copies_matrices(const cuda::KernelConfig& config) {
    return config.bias_stages > 0 || config.adds_matrices;
}

runtime::HeadTurns head_turns_of(const passes::Mod& mod) {
    runtime::HeadTurns turns;
    if (!mod.deterministic) return turns;
    const std::vector<passes::ArgumentSlot> slots = passes::argument_slots(mod);
    turns.at_once = passes::heads_at_once(mod);
    turns.word =
        static_cast<std::size_t>(std::ranges::find(slots, passes::ArgumentSlot::Kind::first_kv_head,
                                                   &passes::ArgumentSlot::kind) -
                                 slots.begin());
    return turns;
}

} // namespace

Result<Built> build_cuda(const passes::Mod& mod, const CompileOptions& options, int device,
                         cache::Store& store) {
    auto info = cuda::device_info(device);
    if (!info) return info.error();
    if (info->arch < 80)
        return Error{ErrorCode::unsupported,
                     formatted("{} has compute capability {}.{}; 8.0 is the least", info->name,
                               info->arch / 10, info->arch % 10)};
    const Target target{cuda::arch_name(info->arch), info->arch};
    auto compiled = compile_kernels(mod, options, target, store);
    if (!compiled) return compiled.error();
    Built built;
    std::vector<runtime::CudaKernel> kernels;
    for (CompiledKernel& one : *compiled) {
        built.from_cache = built.from_cache && one.cached;
        built.bytes += one.kernel.cubin.size();
        kernels.push_back(std::move(one.kernel));
    }
    bool takes_any_layout = true;
    std::vector<runtime::CopiedMatrix> matrices;
    runtime::StoredGradients stored;
    for (const runtime::CudaKernel& kernel : kernels) {
        takes_any_layout =
            takes_any_layout && !kernel.config.hopper && !kernel.config.is_hopper_backward;
        if (!copies_matrices(kernel.config)) continue;
        matrices = runtime::copied_matrices(mod, kernel.config);
        stored = runtime::stored_gradients(mod, kernel.config);
    }
    auto loaded = runtime::load_cuda(
        std::move(kernels),
        {.device = device,
         .dtype = options.dtype,
         .head_dim = options.head_dim,
         .head_dim_v = options.head_dim_v,
         .distance_reads = passes::distance_reads(mod).size(),
         .deterministic = options.deterministic,
         .exact_gradients = exact_gradient_words(mod),
         .head_turns = head_turns_of(mod),
         .copied_matrices = std::move(matrices),
         .stored_gradients = std::move(stored),
         .copied_biases = runtime::copied_biases(mod),
         .compile_substitute =
             takes_any_layout ? nullptr : substitute_compiler(mod, options, target),
         .report_out_of_range = options.report_out_of_range});
    if (!loaded) return loaded.error();
    built.executable = std::move(*loaded);
    return built;
}

Result<OfflineResult> build_cubins(const passes::Mod& mod, const CompileOptions& options,
                                   std::string_view arch, bool any_layout, cache::Store& store) {
    auto target = target_of(arch);
    if (!target) return target.error();
    auto compiled = compile_kernels(mod, options, *target, store);
    if (!compiled) return compiled.error();
    const std::size_t count = any_layout ? compiled->size() : 0;
    for (std::size_t i = 0; i < count; ++i) {
        const cuda::KernelConfig& config = (*compiled)[i].kernel.config;
        if (!config.hopper && !config.is_hopper_backward) continue;
        using enum cuda::KernelKind;
        if (config.kind == expand || config.kind == fold) continue; // the generic ones need none
        const auto add = [&](cuda::KernelKind kind, runtime::Substitute what) -> Result<void> {
            auto one = compile_kernel(mod, options, kind, *target, store, preference_for(what));
            if (!one) return one.error();
            compiled->push_back(std::move(*one));
            return {};
        };
        const cuda::KernelKind kind = config.kind;
        if (copies_matrices(config))
            if (auto done = add(kind, runtime::Substitute::single_elements); !done)
                return done.error();
        if (auto done = add(generic_kind(kind, options), runtime::Substitute::any_layout); !done)
            return done.error();
    }
    OfflineResult result{.cached = true};
    for (CompiledKernel& one : *compiled) {
        result.cached = result.cached && one.cached;
        std::string file = cache::encode_entry(one.id.key, one.id.source, entry_of(one));
        result.kernels.push_back({.info = std::move(one.kernel.info),
                                  .bytes = std::move(one.kernel.cubin),
                                  .pack_name = cache::entry_name(one.id.key),
                                  .pack_bytes = std::move(file)});
    }
    return result;
}

Result<std::string> explain_cuda(const passes::Mod& mod, const CompileOptions& options,
                                 std::string_view arch) {
    auto target = target_of(arch);
    if (!target) return target.error();
    std::vector<cuda::KernelKind> kinds = {cuda::KernelKind::forward};
    // The header of one backward kernel holds everything that those of the others do.
    auto all = kinds_of(mod, options, *target);
    if (!all) return all.error();
    for (const cuda::KernelKind kind : *all)
        if (kind == cuda::KernelKind::backward_fused || kind == cuda::KernelKind::backward_dkdv)
            kinds.push_back(kind);
    std::string text;
    for (const cuda::KernelKind kind : kinds) {
        const cuda::KernelConfig config = configure(mod, options, kind, *target);
        text += formatted("// For {}:\n\n{}", config.template_path, mod_text(mod, options, config));
    }
    return text;
}

namespace {

std::string_view heads_of(bool by_batch, bool by_head) {
    if (by_batch && by_head) return "each b and h";
    if (by_batch) return "each b";
    return by_head ? "each h" : "all b and h";
}

// What a kernel's map takes, in the words of common/tile_map.h.
std::string describe_map(const cuda::KernelConfig& config) {
    const bool by_keys = config.kind == cuda::KernelKind::backward_dkdv ||
                         config.kind == cuda::KernelKind::backward_fused;
    return formatted("    its map: {} bytes for a row of tiles, of {} {}, and {} for each 32 tiles "
                     "of {} {} in it\n",
                     sizeof(TileRow) + sizeof(int), by_keys ? config.key_tile : config.query_tile,
                     by_keys ? "keys" : "queries", sizeof(TileWord),
                     by_keys ? config.query_tile : config.key_tile, by_keys ? "queries" : "keys");
}

// What one head of keys or distances has, and which heads share it.
std::string describe_expanded(const cuda::ExpandedValues& expanded) {
    std::string vectors;
    const auto add = [&](int count, std::string_view each) {
        if (count == 0) return;
        vectors += formatted("{}{} for each {}", vectors.empty() ? "" : ", ", count, each);
    };
    add(expanded.keys, "key");
    add(expanded.distances, "distance q_idx - kv_idx");
    return formatted(
        "    before it flexc_forward_expand_sm90 computes, for {}, numbers of the score mod: "
        "{}\n",
        heads_of(expanded.by_batch, expanded.by_head), vectors);
}

std::string describe_planner(const cuda::KernelConfig& config) {
    const cuda::PlannerShape& shape = *config.planner;
    return formatted("  flexc_plan_facts, {}, flexc_plan_order: a map for {} for each kernel that "
                     "has one; {} intervals of {} bytes for each tile of queries, {} of keys; {}\n",
                     config.entry, heads_of(shape.by_batch, shape.by_head), shape.query_facts,
                     2 * sizeof(double), shape.key_facts, config.reason);
}

} // namespace

Result<std::string> explain_plan(const passes::Mod& mod, const CompileOptions& options,
                                 std::string_view arch) {
    auto target = target_of(arch);
    if (!target) return target.error();
    auto kinds = kinds_of(mod, options, *target);
    if (!kinds) return kinds.error();
    auto schedule = asked_schedule(mod, options, *target);
    if (!schedule) return schedule.error();
    std::string text = formatted("for {}, {}, head dims {} and {}:\n", arch, name(options.dtype),
                                 options.head_dim, options.head_dim_v);
    for (const cuda::KernelKind kind : *kinds) {
        const cuda::KernelConfig config =
            configure(mod, options, kind, *target, {.schedule = *schedule});
        if (config.planner) {
            text += describe_planner(config);
            continue;
        }
        text += formatted("  {}: tile {} x {}, {} warps, {} stages, {} bytes shared; {}\n",
                          config.entry, config.query_tile, config.key_tile, config.warps,
                          config.stages, config.shared_bytes, config.reason);
        if (config.has_map) text += describe_map(config);
        if (!config.hopper) continue;
        text += formatted("    schedule: {}\n", text_of(config.hopper->schedule));
        if (config.hopper->expanded.any()) text += describe_expanded(config.hopper->expanded);
    }
    return text;
}

} // namespace flexc::api
