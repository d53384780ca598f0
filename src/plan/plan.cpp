#include "plan/plan.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <limits>
#include <numeric>
#include <span>

#include "common/sequences.h"
#include "passes/gradient_order.h"
#include "passes/gradient_sum.h"
#include "plan/arch/family.h"
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

Result<void> check_demand(const CompileOptions& options, const KernelRequest& request) {
    if (!demands_specialized(options, request.kind)) return {};
    const std::string_view why = specialized_family(request.arch).why_not(request);
    if (!why.empty()) return not_there(request.kind, why);
    return {};
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
std::string_view why_not_layouts(const Program& program, KernelKind kind) {
    const ir::Program& ir = program.mod().program;
    if (kind == KernelKind::forward && !program.request(kind).sequences.scattered_in.empty())
        return "";
    if (const support::KeyLayout& keys = support::key_layout(ir.key_layout); !keys.is_in_order)
        return keys.why_scattered;
    return ir.query_layout == ir.key_layout ? "" : "only queries, or only keys, are ragged";
}

// Returns why a fused kernel would not produce the same bits on every run; empty if it would. Only
// kernels of some families add to dq in a fixed order, and these cannot sum gradients head by head.
std::string_view why_not_in_order(const Program& program) {
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

// Returns why only the generic kernels can be used, apart from the families' own reasons; empty if
// others can.
std::string_view why_generic(const Program& program, KernelKind kind) {
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

// Returns fewer candidates, for a large program: the first one, its form that saves registers in
// two steps (tried if so few bytes spill that it can help) or, of a forward, the first with fewer
// warps, which have more registers, and the generic ones. These have half the speed, and if the
// first of them spills little, the others are not worth a compile.
std::vector<KernelConfig> few_of(std::vector<KernelConfig> candidates) {
    constexpr int kSteps = 2, kSavable = 64;
    for (KernelConfig& candidate : candidates)
        if (is_generic(candidate))
            candidate.spills.tolerated = std::max(candidate.spills.tolerated, kSavable);
    const auto generic = std::ranges::find_if(candidates, is_generic);
    if (generic == candidates.begin() || generic == candidates.end()) return candidates;
    std::vector<KernelConfig> few = {candidates.front()};
    const auto forms =
        std::span(candidates).subspan(1, static_cast<std::size_t>(few.front().spills.saving_forms));
    const auto form = std::ranges::find(
        forms, kSteps, [](const KernelConfig& config) { return config.form.saves_registers; });
    few.front().spills.saving_forms = form != forms.end() ? 1 : 0;
    if (form != forms.end()) {
        few.front().spills.savable = kSavable;
        few.front().spills.beside = kSavable;
        few.push_back(*form);
        few.back().spills.saving_forms = 0;
    }
    if (few.front().kind == KernelKind::forward) {
        const auto smaller = std::ranges::find_if(
            std::ranges::subrange(candidates.begin(), generic), [&](const KernelConfig& config) {
                return config.block.warps < few.front().block.warps;
            });
        if (smaller != generic) few.push_back(*smaller);
        few.back().spills.tolerated = std::max(few.back().spills.tolerated, kSavable);
    } else {
        few.back().spills.tolerated = std::max(few.back().spills.tolerated, kSpillsOfLong);
    }
    few.insert(few.end(), generic, candidates.end());
    return few;
}

Variant variant(const Program& program, Calls calls, KernelRequest request) {
    Variant result{calls, request, {}};
    result.candidates = candidates(result.request);
    const bool is_large_kernel = result.request.kind == KernelKind::forward
                                     ? has_large_score(program.mod())
                                     : is_large(program.mod());
    if (is_large_kernel) result.candidates = few_of(std::move(result.candidates));
    return result;
}

KernelRequest generic(const KernelRequest& request) {
    KernelRequest other = request;
    other.generic_because = "a kernel for tensors of any layout is needed";
    other.mask.has_block_mask = false; // this variant is compiled for a single call
    other.schedule.reset();
    return other;
}

// Whether calls of some sizes have kernels of their own: many short sequences, of which a block
// computes whole ones, and few queries. Memory is the bottleneck of both. Not if the options ask
// for a kernel, or for results that do not depend on the rest of the batch.
bool has_kernels_by_size(const Program& program, bool is_automatic) {
    const CompileOptions& options = program.options();
    return is_automatic && options.schedule.empty() && !options.batch_invariant &&
           program.mod().program.is_dense() && !is_large(program.mod());
}
bool has_short_kernels(const Program& program, bool is_automatic) {
    return has_kernels_by_size(program, is_automatic) && !program.options().kv_dtype;
}

// Returns the numbers of rows for which there are such kernels: those for which products take less
// time than memory, and the kernels less than those for long sequences.
std::vector<int> short_rows(const KernelRequest& request) {
    struct Size {
        int rows, most_columns; // of keys and values together
    };
    static constexpr Size kForward[] = {{16, 512}, {32, 256}, {64, 128}, {96, 64}};
    static constexpr Size kBackward[] = {{16, 512},  {32, 256}, {64, 128}, {96, 128},
                                         {128, 128}, {144, 64}, {160, 64}, {256, 64}};
    const bool is_forward = request.kind == KernelKind::forward;
    const int most_rows = is_forward && request.shared_value != ir::kNoNode
                              ? kMostRowsWithValues
                              : std::numeric_limits<int>::max();
    std::vector<int> counts;
    for (const Size& size : is_forward ? std::span<const Size>(kForward) : kBackward)
        if (size.rows <= most_rows && request.head_dim + request.head_dim_v <= size.most_columns)
            counts.push_back(size.rows);
    return counts;
}

void add_short_variants(const Program& program, const KernelRequest& request,
                        std::vector<Variant>& variants) {
    for (const int rows : short_rows(request)) {
        KernelRequest of_short = generic(request);
        of_short.generic_because = "sequences are short";
        of_short.sequences.most_rows = rows;
        Variant of_rows = variant(program, Calls::short_sequences, of_short);
        if (!of_rows.candidates.empty()) variants.push_back(std::move(of_rows));
    }
}

Result<std::vector<Variant>> forward_variants(const Program& program,
                                              const std::optional<ForwardSchedule>& schedule) {
    KernelRequest request = program.request(KernelKind::forward);
    request.generic_because = why_generic(program, KernelKind::forward);
    if (auto checked = check_demand(program.options(), request); !checked) return checked.error();
    request.schedule = schedule;
    std::vector<Variant> variants = {variant(program, Calls::usual, request)};
    if (has_short_kernels(program, program.options().forward_kernel == ForwardKernel::automatic))
        add_short_variants(program, request, variants);
    if (why_no_few_kernels(program).empty()) {
        KernelRequest of_few = generic(request);
        of_few.generic_because = "queries are few";
        of_few.sequences.has_few_queries = true;
        variants.push_back(variant(program, Calls::few_queries, of_few));
    }
    if (!is_generic(variants.front().candidates.front()))
        variants.push_back(variant(program, Calls::any, generic(request)));
    return variants;
}

// Returns the request for calls whose dense biases cannot be copied, nor their gradients added, by
// tiles.
KernelRequest without_biases(KernelRequest request) {
    request.bias.bytes = 0;
    request.bias.adds_gradients = false;
    request.mask.has_block_mask = false; // this variant is compiled for a single call
    return request;
}

// Returns the variant of several kernels that share the gradients of buffers; nothing if one kernel
// sums them all, or if specialized kernels cannot sum what is shared.
std::optional<Variant> sharing_variant(const Program& program, Calls calls) {
    std::vector<Variant> kernels;
    CompileOptions options = program.options();
    if (calls != Calls::usual) { // it may be compiled when the caller's log does not exist any more
        options.log = {};
        options.cancel = {};
    }
    for (const passes::Mod& mod : program.mod().gradient_passes) {
        auto own = std::make_shared<const Program>(mod, options, program.target());
        KernelRequest request = own->request(KernelKind::backward_fused);
        request.generic_because = why_generic(*own, KernelKind::backward_fused);
        request.gradients.are_alone = !kernels.empty();
        if (calls == Calls::unaligned_biases) request = without_biases(request);
        kernels.push_back(variant(*own, calls, request));
        // Others do not have the statistics of rows that the kernels share.
        std::erase_if(kernels.back().candidates, is_generic);
        if (kernels.back().candidates.empty()) return {};
        kernels.back().program = std::move(own);
    }
    if (kernels.empty()) return {};
    Variant first = std::move(kernels.front());
    first.further.assign(std::make_move_iterator(kernels.begin() + 1),
                         std::make_move_iterator(kernels.end()));
    return first;
}

// Whether the generic kernel of all gradients is as fast as several that share them: where elements
// read much, these spill at wide heads.
bool stays_generic(const KernelRequest& whole) {
    constexpr int kNarrow = 64;
    return !whole.generic_because.empty() && whole.work.reads_much() &&
           std::max(whole.head_dim, whole.head_dim_v) > kNarrow;
}

// Whether a kernel copies tiles of dense biases, or adds such tiles, whose rows must be aligned.
bool needs_aligned_biases(const Variant& variant) {
    const KernelConfig& first = variant.candidates.front();
    return first.storage.bias_stages > 0 || first.sums.adds_bias_gradients ||
           std::ranges::any_of(variant.further, needs_aligned_biases);
}

Result<std::vector<Variant>> backward_variants(const Program& program) {
    const CompileOptions& options = program.options();
    const std::string_view no_order = options.deterministic ? why_not_in_order(program) : "";
    KernelRequest request = program.request(KernelKind::backward_fused);
    request.generic_because = why_generic(program, KernelKind::backward_fused);
    const KernelRequest of_short =
        request; // a block has the whole dq of a sequence, so its order is fixed
    const bool is_split = options.backward_kernel == BackwardKernel::split || !no_order.empty();
    if (is_split) request.kind = KernelKind::backward_dkdv;
    const bool is_whole = is_split || stays_generic(request);
    const auto of_calls = [&](Calls calls, const KernelRequest& of_whole) {
        auto sharing = is_whole ? std::nullopt : sharing_variant(program, calls);
        return sharing ? *std::move(sharing) : variant(program, calls, of_whole);
    };
    std::vector<Variant> variants = {of_calls(Calls::usual, request)};
    if (variants.front().further.empty())
        if (auto checked = check_demand(options, request); !checked) return checked.error();
    if (passes::why_not_batches(program.mod()).empty() &&
        has_short_kernels(program, options.backward_kernel == BackwardKernel::automatic))
        add_short_variants(program, of_short, variants);
    if (!no_order.empty())
        for (KernelConfig& candidate : variants.front().candidates)
            candidate.reason += formatted("; not fused: {}", no_order);
    if (is_generic(variants.front().candidates.front())) return variants;
    if (needs_aligned_biases(variants.front()))
        variants.push_back(of_calls(Calls::unaligned_biases, without_biases(request)));
    KernelRequest any = generic(request);
    // Only kernels that use TMA add to dq in a fixed order.
    if (options.deterministic) any.kind = KernelKind::backward_dkdv;
    variants.push_back(variant(program, Calls::any, any));
    return variants;
}

void add_block_mask_builder(const passes::Mod& mod, KernelPlan& plan) {
    using analysis::Dependence;
    const Dependence reads = mod.dependence[mod.mask];
    plan.block_mask_facts = {.by_batch = reads.has(Dependence::b),
                             .by_head = reads.has(Dependence::h),
                             .queries = mod.program.query_layout,
                             .keys = mod.program.key_layout};
    const bool has_intervals = mod.mask_tier == analysis::MaskTier::tile_tests;
    plan.block_mask =
        KernelConfig{.kind = KernelKind::block_mask,
                     .template_path = "plan.cu",
                     .entry = "flexc_plan_tiles",
                     .block = {.warps = 8},
                     .reason = has_intervals ? "tiles by intervals, then by their elements"
                                             : "tiles by their elements"};
}

KernelConfig length_reader() {
    return {.kind = KernelKind::lengths,
            .template_path = "lengths.cu",
            .entry = "flexc_read_lengths",
            .block = {.warps = 16},
            .reason = "records of requests from arrays on the device"};
}

Result<std::optional<ForwardSchedule>> asked_schedule(const Program& program) {
    const std::string& text = program.options().schedule;
    if (text.empty()) return std::optional<ForwardSchedule>();
    KernelRequest request = program.request(KernelKind::forward);
    request.generic_because = why_generic(program, KernelKind::forward);
    const auto schedules = forward_schedules(request);
    if (schedules.empty())
        return Error{ErrorCode::invalid_option,
                     formatted("schedule '{}': the forward kernel of this program has only one for "
                               "{}; leave it empty",
                               text, program.target().arch)};
    const auto schedule = read_schedule(text);
    if (!schedule || std::ranges::find(schedules, *schedule) == schedules.end())
        return Error{ErrorCode::invalid_option,
                     formatted("schedule '{}': expected one that forward_schedules() lists, such "
                               "as '{}'",
                               text, text_of(schedules.front()))};
    return schedule;
}

} // namespace

std::vector<KernelConfig> candidates(const KernelRequest& request) {
    std::vector<KernelConfig> all;
    std::string others; // why earlier families have no candidates
    for (const Family* family : families()) {
        const std::string_view why = family->why_not(request);
        const bool follows = !all.empty();
        // Kernels that follow would add to dq in no fixed order.
        const bool loses_order =
            request.kind == KernelKind::backward_fused && request.deterministic;
        if (why.empty() && !(follows && loses_order))
            for (KernelConfig& config : family->candidates(request, follows)) {
                config.reason += others;
                all.push_back(std::move(config));
            }
        if (request.schedule && !all.empty()) break;
        if (family->runs_on(request.arch) && request.kind != KernelKind::backward_dkdv)
            others += formatted("; not {}'s kernel: {}", family->called,
                                why.empty() ? "every tile of it spills registers" : why);
    }
    return all;
}

std::vector<ForwardSchedule> forward_schedules(const KernelRequest& request) {
    for (const Family* family : families())
        if (family->why_not(request).empty())
            return family->schedules == nullptr ? std::vector<ForwardSchedule>()
                                                : family->schedules(request);
    return {};
}

std::string_view warning_about(const Target& target) {
    for (const Family* family : families())
        if (family->runs_on(target.number)) return family->warning(target);
    return "";
}

std::string_view why_no_few_kernels(const Program& program) {
    const bool is_automatic = program.options().forward_kernel == ForwardKernel::automatic;
    if (program.needs_block_mask())
        return "tiles come from a block mask, which has those of other kernels";
    if (has_kernels_by_size(program, is_automatic)) return "";
    return "the program, or what the options ask for, leaves no choice by size";
}

Result<KernelPlan> make_plan(const Program& program) {
    KernelPlan plan;
    auto schedule = asked_schedule(program);
    if (!schedule) return schedule.error();
    auto forward = forward_variants(program, *schedule);
    if (!forward) return forward.error();
    plan.forward = std::move(*forward);
    if (program.needs_block_mask()) add_block_mask_builder(program.mod(), plan);
    if (!program.mod().program.is_dense()) plan.lengths = length_reader();
    if (!program.options().backward) return plan;
    auto backward = backward_variants(program);
    if (!backward) return backward.error();
    plan.backward = std::move(*backward);
    return plan;
}

PassPlan pass_of(const Program& program, const Variant& variant, const KernelConfig& main) {
    const Family& family = family_of(main);
    const Program& own = program_of(variant, program);
    PassPlan pass =
        main.kind == KernelKind::forward ? family.forward(own, main) : family.backward(own, main);
    pass.most_rows = variant.request.sequences.most_rows;
    pass.has_few_queries = variant.request.sequences.has_few_queries;
    for (Step& step : pass.steps) {
        auto* launch = std::get_if<Launch>(&step);
        if (launch == nullptr) continue;
        const KernelConfig& kernel = pass.kernels[launch->kernel];
        if (kernel.has_block_mask && launch->entry == kernel.entry)
            launch->block_mask = mask_tiling(kernel, !program.mod().program.is_dense());
    }
    return pass;
}

void append(PassPlan& pass, PassPlan further) {
    const std::size_t before = pass.kernels.size();
    for (Step& step : further.steps)
        if (auto* launch = std::get_if<Launch>(&step)) launch->kernel += before;
    const auto rounds = std::ranges::find_if(pass.steps, [](const Step& step) {
        return std::holds_alternative<RoundSums>(step) ||
               std::holds_alternative<RoundGradients>(step);
    });
    const auto append_all = [](auto& to, auto& from) {
        to.insert(to.end(), std::make_move_iterator(from.begin()),
                  std::make_move_iterator(from.end()));
    };
    pass.steps.insert(rounds, std::make_move_iterator(further.steps.begin()),
                      std::make_move_iterator(further.steps.end()));
    append_all(pass.kernels, further.kernels);
    append_all(pass.small_buffers, further.small_buffers);
    append_all(pass.tiled_biases, further.tiled_biases);
    pass.query_offset_step = std::lcm(pass.query_offset_step, further.query_offset_step);
    pass.key_offset_step = std::lcm(pass.key_offset_step, further.key_offset_step);
    // Kernels that follow one another use the same memory, as far as each needs it.
    for (WorkspaceRegion& region : further.workspace) {
        const auto same =
            std::ranges::find(pass.workspace, region.region, &WorkspaceRegion::region);
        if (same == pass.workspace.end())
            pass.workspace.push_back(std::move(region));
        else if (same->elements.of({}) < region.elements.of({})) // they differ by a factor at most
            same->elements = std::move(region.elements);
    }
}

MaskTiling mask_tiling(const KernelConfig& kernel, bool of_requests) {
    // All queries of a request with few queries are one tile, whichever rows a block has.
    if (kernel.sequences.has_few_queries)
        return {kMostFewRows, kernel.block.key_tile, false, RowsOf::few};
    const bool leaves_few = of_requests && kernel.kind == KernelKind::forward;
    // A block of these has a tile of keys and visits queries, not the other way.
    const bool owns_keys =
        kernel.kind == KernelKind::backward_dkdv || kernel.kind == KernelKind::backward_fused;
    return {kernel.block.query_tile, kernel.block.key_tile, owns_keys,
            leaves_few ? RowsOf::many : RowsOf::all};
}

KernelConfig with_schedule(const Variant& variant, const ForwardSchedule& schedule) {
    KernelRequest request = variant.request;
    request.schedule = schedule;
    return candidates(request).front();
}

Result<void> check_demands(const Program& program, const Variant& variant,
                           const KernelConfig& main) {
    if (variant.calls != Calls::usual || !demands_specialized(program.options(), main.kind) ||
        main.family == specialized_family(program.target().number).name)
        return {};
    return not_there(main.kind, "");
}

} // namespace flexc::plan
