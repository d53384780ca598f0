#include "api/cuda_kernels.h"

#include <algorithm>
#include <optional>
#include <thread>

#include "api/frontend.h"
#include "api/schedules.h"
#include "cuda/emit.h"
#include "cuda/emit_gradients.h"
#include "cuda/emit_tiles.h"
#include "cuda/expand.h"
#include "cuda/fill.h"
#include "cuda/fold.h"
#include "cuda/nvrtc.h"
#include "cuda/select.h"
#include "passes/gradient_order.h"
#include "passes/gradient_sum.h"
#include "passes/matrix_read.h"
#include "support/log.h"
#include "support/text.h"

namespace flexc::api {

using cuda::KernelKind;
using runtime::CudaKernel;

namespace {

Error unsupported(std::string message) { return {ErrorCode::unsupported, std::move(message)}; }

std::string schedule_text(const cuda::KernelConfig& config) {
    return config.hopper ? text_of(config.hopper->schedule) : "";
}

// How many configurations what was compiled rules out, beginning with its own. A kernel on Hopper
// can lose more than half of its speed when registers spill or products are serialised.
int refusals(const cuda::NvrtcOutput& output, const cuda::KernelConfig& config) {
    int count = 0;
    for (const cuda::KernelUsage& usage : output.kernels) {
        if (!usage.serialised && usage.spill_store_bytes <= config.tolerated_spills) continue;
        const bool is_hopeless = usage.spill_store_bytes > config.savable_spills;
        count = std::max(count, 1 + (is_hopeless ? config.saving_forms : 0));
    }
    return count;
}

// Whether ranges that a kernel computes do not say which tiles to visit. What a mask reads outside
// its buffers is reported for every element, so that all are visited then.
bool needs_map(const passes::Mod& mod) {
    return mod.out_of_range == ir::kNoNode && (mod.mask_tier == analysis::MaskTier::tile_tests ||
                                               mod.mask_tier == analysis::MaskTier::exhaustive);
}

bool visits_tiles(KernelKind kind) {
    return kind == KernelKind::forward || kind == KernelKind::backward_dq ||
           kind == KernelKind::backward_dkdv || kind == KernelKind::backward_fused;
}

cuda::KernelConfig planner(const passes::Mod& mod) {
    using analysis::Dependence;
    const Dependence reads = mod.dependence[mod.mask];
    const cuda::TileFacts facts = cuda::tile_facts(mod);
    cuda::KernelConfig config;
    config.kind = KernelKind::plan;
    config.template_path = "plan.cu";
    config.entry = "flexc_plan_tiles";
    config.warps = 8;
    config.planner = {.query_facts = facts.of_queries,
                      .key_facts = facts.of_keys,
                      .by_batch = reads.has(Dependence::b),
                      .by_head = reads.has(Dependence::h)};
    config.reason = mod.mask_tier == analysis::MaskTier::tile_tests
                        ? "tiles by intervals, then by their elements"
                        : "tiles by their elements";
    return config;
}

// Bytes of an element of the matrix that a kernel copies to shared memory; 0 for none.
int bias_bytes(const passes::Mod& mod, KernelKind kind) {
    if (kind == KernelKind::forward) return cuda::bias_bytes(mod);
    // The warps that copy it are those that sum over diagonals elsewhere.
    if (kind != KernelKind::backward_fused || passes::sums_by(mod, passes::GradientSum::distance))
        return 0;
    const ir::NodeId read = passes::matrix_of_score(mod);
    if (read == ir::kNoNode) return 0;
    return static_cast<int>(size_of(mod.program.buffers[mod.program.graph[read].symbol].dtype));
}

cuda::KernelRequest request_of(const passes::Mod& mod, const CompileOptions& options,
                               KernelKind kind, const Target& target) {
    const ir::Graph& graph = mod.program.graph;
    return {.kind = kind,
            .arch = target.number,
            .dtype = options.dtype,
            .head_dim = options.head_dim,
            .head_dim_v = options.head_dim_v,
            .has_score_mod = graph[mod.score].op != ir::Op::score,
            .has_mask = graph[mod.mask].op != ir::Op::const_bool,
            .reports_out_of_range = options.report_out_of_range,
            .bias_bytes = bias_bytes(mod, kind),
            .adds_matrices = kind == KernelKind::backward_fused &&
                             passes::sums_by(mod, passes::GradientSum::matrix),
            .matrices_are_of_scores = passes::are_matrices_of_scores(mod),
            .matrices_are_narrow = passes::are_matrices_narrow(mod),
            .adds_elements = kind == KernelKind::backward_fused &&
                             passes::sums_by(mod, passes::GradientSum::element,
                                             {.key_width = passes::key_width_of_gradients(mod)}),
            .sums_distances = passes::sums_by(mod, passes::GradientSum::distance),
            .query_sums = passes::count_sums_by(mod, passes::GradientSum::query),
            .derivative_uses_score = kind == KernelKind::backward_fused &&
                                     mod.dependence[mod.d_score].has(analysis::Dependence::score),
            .has_window = !mod.band.low.empty() && !mod.band.high.empty(),
            .deterministic = options.deterministic};
}

// Why a fused kernel would not give the same bits on every run; empty where it does. Additions to
// dq have an order in Hopper's kernel alone, and in it no gradient is taken head by head.
std::string_view why_not_in_order(const passes::Mod& mod, const CompileOptions& options,
                                  const Target& target) {
    if (options.backward_kernel == BackwardKernel::generic) return "generic kernels were asked for";
    if (needs_map(mod)) return "the mask has a map of tiles";
    if (passes::has_gradients_of_terms(mod)) return "the terms of a sum have gradients";
    if (passes::has_dense_gradient(mod))
        return "heads take turns at the gradient of a buffer of q and kv";
    return cuda::why_not_backward_sm90(
        request_of(mod, options, KernelKind::backward_fused, target));
}

bool is_split(const passes::Mod& mod, const CompileOptions& options, const Target& target) {
    if (options.backward_kernel == BackwardKernel::split) return true;
    return options.deterministic && !why_not_in_order(mod, options, target).empty();
}

// Empty where others are as good.
std::string_view why_generic(const passes::Mod& mod, const CompileOptions& options, KernelKind kind,
                             const Target& target) {
    const bool is_forward = kind == KernelKind::forward;
    if (is_forward ? options.forward_kernel == ForwardKernel::generic
                   : options.backward_kernel == BackwardKernel::generic)
        return "the generic kernel was asked for";
    if (is_forward) return "";
    if (is_split(mod, options, target)) return "only the generic kernels are split";
    if (passes::has_gradients_of_terms(mod))
        return "some gradient is of the terms of a sum, which are many for each element";
    return "";
}

// The kernels of a fused backward share a workspace. Where Hopper's did not fit, those around it
// are generic too.
Result<void> agree(std::vector<CompiledKernel>& kernels, const passes::Mod& mod,
                   const CompileOptions& options, const Target& target, cache::Store& store) {
    const bool fell_back = std::ranges::any_of(kernels, [](const CompiledKernel& one) {
        return one.kernel.config.kind == KernelKind::backward_fused &&
               !one.kernel.config.is_hopper_backward;
    });
    if (!fell_back) return {};
    std::erase_if(kernels, [](const CompiledKernel& one) {
        const KernelKind kind = one.kernel.config.kind;
        return kind == KernelKind::expand || kind == KernelKind::fold;
    });
    for (CompiledKernel& one : kernels)
        if (one.kernel.config.is_hopper_backward) {
            auto generic = compile_kernel(mod, options, one.kernel.config.kind, target, store,
                                          {.generic = true});
            if (!generic) return generic.error();
            one = std::move(*generic);
        }
    return {};
}

} // namespace

Result<Target> target_of(std::string_view arch) {
    const int number = cuda::arch_number(arch);
    if (number < 80)
        return Error{ErrorCode::invalid_option,
                     formatted("'{}' is not a supported architecture: give sm_80, sm_86, sm_89, "
                               "sm_90a, sm_100 or sm_120",
                               arch)};
    return Target{std::string(arch), number};
}

Result<std::vector<KernelKind>> kinds_of(const passes::Mod& mod, const CompileOptions& options,
                                         const Target& target) {
    std::vector<KernelKind> kinds = {KernelKind::forward};
    if (needs_map(mod)) kinds.push_back(KernelKind::plan);
    if (!options.backward) return kinds;
    kinds.push_back(KernelKind::delta);
    if (is_split(mod, options, target)) {
        kinds.push_back(KernelKind::backward_dkdv);
        kinds.push_back(KernelKind::backward_dq);
    } else {
        kinds.push_back(KernelKind::backward_fused);
        kinds.push_back(KernelKind::convert);
        const bool hopper =
            configure(mod, options, KernelKind::backward_fused, target).is_hopper_backward;
        if (hopper && !passes::distance_reads(mod).empty()) kinds.push_back(KernelKind::expand);
        if (hopper && passes::sums_by(mod, passes::GradientSum::distance))
            kinds.push_back(KernelKind::fold);
    }
    if (options.deterministic && !passes::exact_gradients(mod).empty())
        kinds.push_back(KernelKind::round_sums);
    const bool rounds = options.gradient_type == GradientType::buffer &&
                        std::ranges::any_of(mod.program.buffers, [](const ir::Buffer& buffer) {
                            return buffer.grad && buffer.dtype != DType::f32;
                        });
    if (rounds) kinds.push_back(KernelKind::round_gradients);
    return kinds;
}

cuda::KernelRequest request_for(const passes::Mod& mod, const CompileOptions& options,
                                KernelKind kind, const Target& target,
                                const Preference& preference) {
    cuda::KernelRequest request = request_of(mod, options, kind, target);
    request.has_map =
        needs_map(mod) && visits_tiles(kind) && !preference.generic && preference.copies_matrices;
    if (kind == KernelKind::backward_fused && !preference.copies_matrices) {
        request.bias_bytes = 0;
        request.adds_matrices = false;
    }
    request.generic_because = preference.generic ? "a kernel for tensors of any layout is needed"
                                                 : why_generic(mod, options, kind, target);
    if (kind == KernelKind::forward) {
        request.key_grid = cuda::key_grid(mod);
        const auto expanded = [&](int key_width) {
            return cuda::expanded_values(cuda::fold_score(mod, key_width));
        };
        request.expanded = expanded(0);
        if (request.key_grid.width != 0) request.grid_expanded = expanded(request.key_grid.width);
    }
    if (kind == KernelKind::backward_fused) request.grid_reads = cuda::grid_reads(mod);
    request.refused = preference.refused;
    request.schedule = preference.schedule;
    return request;
}

cuda::KernelConfig configure(const passes::Mod& mod, const CompileOptions& options, KernelKind kind,
                             const Target& target, Preference preference) {
    if (kind == KernelKind::plan) return planner(mod);
    const cuda::KernelRequest request = request_for(mod, options, kind, target, preference);
    cuda::KernelConfig config = cuda::select_kernel(request);
    if (kind == KernelKind::backward_dkdv && options.deterministic)
        if (const auto why = why_not_in_order(mod, options, target); !why.empty())
            config.reason += formatted("; not fused: {}", why);
    // A kernel that is compiled for one call alone has no map of its tiles, and those who copy
    // biases on Hopper know ranges only.
    const bool copies_biases = config.hopper && cuda::bias_bytes(mod) != 0;
    config.has_map = request.has_map && !copies_biases;
    return config;
}

std::string mod_text(const passes::Mod& mod, const CompileOptions& options,
                     const cuda::KernelConfig& config) {
    return cuda::emit_mod(
        mod, config,
        {.dtype = options.dtype, .head_dim = options.head_dim, .head_dim_v = options.head_dim_v});
}

Result<CompiledKernel> compile_kernel(const passes::Mod& mod, const CompileOptions& options,
                                      KernelKind kind, const Target& target, cache::Store& store,
                                      Preference preference) {
    const support::Log log(options.log);
    const auto use = [&](CompiledKernel& one, const Preference& choice) {
        CudaKernel& kernel = one.kernel;
        kernel.config = configure(mod, options, kind, target, choice);
        kernel.info.name = kernel.config.entry;
        kernel.info.reason = kernel.config.reason;
        kernel.info.schedule = schedule_text(kernel.config);
    };
    const auto translate = [&](const CompiledKernel& one) {
        return cuda::fill_template(one.kernel.config, mod_text(mod, options, one.kernel.config));
    };
    CompiledKernel result;
    CudaKernel& kernel = result.kernel;
    use(result, preference);
    auto translation = translate(result);
    if (!translation) return translation.error();

    // The entry stands under the source of the first choice, and says which choice it became. Other
    // builds of this version may have chosen otherwise: their code is not for our configuration.
    result.id = identify(*translation, target.arch);
    const auto is_ours = [&](CompiledKernel& found) {
        const bool is_first =
            found.refused == preference.refused && found.schedule == preference.schedule;
        Preference choice = preference;
        choice.refused = found.refused;
        choice.schedule = found.schedule;
        use(found, choice);
        if (is_first) return found.made_of == result.id.source;
        const auto chosen = translate(found);
        return chosen && found.made_of == source_of(*chosen);
    };
    if (auto entry = store.load(result.id.key, result.id.source, log)) {
        auto found = read_entry(std::move(*entry));
        if (found && is_ours(*found)) {
            found->id = result.id;
            found->cached = true;
            return *std::move(found);
        }
        log.warn("a kept {} is of another build of flexc and is made anew", kernel.info.name);
        store.discard(result.id.key, log); // else it would stay, and every process compile again
    }
    auto compiled = cuda::compile_cubin(*translation, target.arch);
    while (compiled && kernel.config.has_next) {
        const int refused = refusals(*compiled, kernel.config);
        if (refused == 0) break;
        log.info("{} with tiles of {} x {} spills or serialises: the next configuration is tried",
                 kernel.config.entry, kernel.config.query_tile, kernel.config.key_tile);
        preference.refused += refused;
        use(result, preference);
        translation = translate(result);
        if (!translation) return translation.error();
        compiled = cuda::compile_cubin(*translation, target.arch);
    }
    if (!compiled) return compiled.error();
    kernel.info.compile_ms = compiled->milliseconds;
    kernel.info.shared_bytes = kernel.config.shared_bytes;
    for (const cuda::KernelUsage& usage : compiled->kernels) {
        kernel.info.registers = std::max(kernel.info.registers, usage.registers);
        kernel.info.spill_bytes = std::max(kernel.info.spill_bytes, usage.spill_store_bytes);
        kernel.info.shared_bytes += usage.shared_bytes;
    }
    kernel.cubin = std::move(compiled->cubin);
    result.made_of = source_of(*translation);
    result.refused = preference.refused;
    result.schedule = preference.schedule;
    store.publish(result.id.key, result.id.source, entry_of(result), log);
    return result;
}

// One thread per kernel: NVRTC compiles independent programs in parallel.
Result<std::vector<CompiledKernel>> compile_kernels(const passes::Mod& mod,
                                                    const CompileOptions& options,
                                                    const Target& target, cache::Store& store) {
    auto kinds = kinds_of(mod, options, target);
    if (!kinds) return kinds.error();
    if (options.forward_kernel == ForwardKernel::hopper) {
        const cuda::KernelConfig forward = configure(mod, options, KernelKind::forward, target, {});
        if (!forward.hopper) return unsupported(forward.reason);
    }
    if (options.backward && options.backward_kernel == BackwardKernel::hopper) {
        const cuda::KernelConfig fused =
            configure(mod, options, KernelKind::backward_fused, target);
        if (!fused.is_hopper_backward) return unsupported(fused.reason);
    }
    auto schedule = asked_schedule(mod, options, target);
    if (!schedule) return schedule.error();
    std::vector<std::optional<Result<CompiledKernel>>> results(kinds->size());
    {
        std::vector<std::jthread> threads;
        threads.reserve(kinds->size());
        for (std::size_t i = 0; i < kinds->size(); ++i)
            threads.emplace_back([&, i] {
                results[i] = guarded([&] {
                    return compile_kernel(mod, options, (*kinds)[i], target, store,
                                          {.schedule = *schedule});
                });
            });
    }
    std::vector<CompiledKernel> kernels;
    for (std::optional<Result<CompiledKernel>>& slot : results) {
        Result<CompiledKernel>& result = *slot; // filled: the threads have ended
        if (!result) return result.error();
        kernels.push_back(std::move(*result));
    }
    if (auto done = agree(kernels, mod, options, target, store); !done) return done.error();
    return kernels;
}

} // namespace flexc::api
