#include "plan/variants.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "passes/gradient_order.h"
#include "plan/arch/family.h"
#include "plan/plan.h"
#include "plan/restrictions.h"
#include "plan/target_program.h"
#include "plan/work.h"
#include "support/text.h"

namespace flexc::plan {

namespace {

// Returns fewer candidates, for a large program: the first one, its form that saves registers in
// two steps (tried if so few bytes spill that it can help), of a forward the first with fewer
// elements at once or with fewer warps, which have more registers, and the generic ones. These have
// half the speed, and if the first of them spills little, the others are not worth a compile.
std::vector<KernelConfig> fewer_candidates(std::vector<KernelConfig> candidates) {
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
    const bool is_forward = few.front().kind == KernelKind::forward;
    const auto smaller = std::ranges::find_if(
        std::ranges::subrange(candidates.begin(), generic), [&](const KernelConfig& config) {
            return is_forward && (config.block.warps < few.front().block.warps ||
                                  config.sum_elements < few.front().sum_elements);
        });
    if (smaller != generic) few.push_back(*smaller);
    few.back().spills.tolerated =
        std::max(few.back().spills.tolerated, is_forward ? kSavable : kSpillsOfLong);
    few.insert(few.end(), generic, candidates.end());
    return few;
}

Variant make_variant(const TargetProgram& program, Calls calls, KernelRequest request) {
    Variant result{calls, request, {}};
    result.candidates = candidates(result.request);
    const bool is_large_kernel = result.request.kind == KernelKind::forward
                                     ? has_large_score(program.mod())
                                     : is_large(program.mod());
    if (is_large_kernel) result.candidates = fewer_candidates(std::move(result.candidates));
    return result;
}

KernelRequest generic_request(const KernelRequest& request) {
    KernelRequest other = request;
    other.generic_because = "a kernel for tensors of any layout is needed";
    other.mask.has_block_mask = false; // this variant is compiled for a single call
    other.schedule.reset();
    return other;
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

void add_short_variants(const TargetProgram& program, const KernelRequest& request,
                        std::vector<Variant>& variants) {
    for (const int rows : short_rows(request)) {
        KernelRequest of_short = generic_request(request);
        of_short.generic_because = "sequences are short";
        of_short.sequences.most_rows = rows;
        Variant of_rows = make_variant(program, Calls::short_sequences, of_short);
        if (!of_rows.candidates.empty()) variants.push_back(std::move(of_rows));
    }
}

// Adds the variants of specialized forward kernels for many short sequences, if there are such.
void add_specialized_short_variants(const TargetProgram& program, const KernelRequest& request,
                                    std::vector<Variant>& variants) {
    // Numbers of queries that fill most of their tiles of 256. With fewer than the first, all
    // kernels wait for memory alike.
    struct Rows {
        int least, most;
    };
    static constexpr Rows kRows[] = {{129, 256}, {385, 512}};
    // A block mask would be that of other tiles.
    if (program.needs_block_mask() || !request.generic_because.empty()) return;
    for (const auto& [least, most] : kRows) {
        KernelRequest of_short = request;
        of_short.sequences.least_rows = least;
        of_short.sequences.most_rows = most;
        Variant of_rows = make_variant(program, Calls::short_sequences, std::move(of_short));
        if (!of_rows.candidates.empty()) variants.push_back(std::move(of_rows));
    }
}

Result<std::optional<ForwardSchedule>> asked_schedule(const TargetProgram& program) {
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

// What calls other than the usual ones ask of a kernel, by what usual ones ask.
using OtherRequest = KernelRequest (*)(KernelRequest);

KernelRequest unchanged(KernelRequest request) { return request; }

// Returns the request for calls whose tables may have any number of entries.
KernelRequest without_bound_entries(KernelRequest request) {
    if (request.gradients.entries_of_elements.is_bound) request.gradients.entries_of_elements = {};
    if (request.terms.by_kinds.most_bound != 0) request.terms.by_kinds = {};
    return request;
}

// Returns the request for calls of which a variant takes all that the ones before it do not: it is
// compiled for a single call.
KernelRequest of_single_call(KernelRequest request) {
    request = without_bound_entries(std::move(request));
    request.mask.has_block_mask = false;
    return request;
}

// Returns the request for calls whose dense biases cannot be copied, nor their gradients added, by
// tiles.
KernelRequest without_biases(KernelRequest request) {
    request = of_single_call(std::move(request));
    request.bias.bytes = 0;
    request.bias.adds_gradients = false;
    return request;
}

// Returns the options of a variant, which may be compiled when the caller's log does not exist any
// more.
CompileOptions options_of(const TargetProgram& program, Calls calls) {
    CompileOptions options = program.options();
    if (calls == Calls::usual) return options;
    options.log = {};
    options.cancel = {};
    return options;
}

// Returns the variant of several kernels that share the gradients of buffers, by the mod of each;
// nothing if there are none, or if specialized kernels cannot sum what is shared.
std::optional<Variant> sharing_variant(const TargetProgram& program, Calls calls,
                                       const std::vector<passes::Mod>& mods, OtherRequest asked) {
    std::vector<Variant> kernels;
    const CompileOptions options = options_of(program, calls);
    for (const passes::Mod& mod : mods) {
        auto own = std::make_shared<const TargetProgram>(mod, options, program.target());
        KernelRequest request = own->request(KernelKind::backward_fused);
        request.generic_because = why_generic(*own, KernelKind::backward_fused);
        request.gradients.are_alone = !kernels.empty();
        kernels.push_back(make_variant(*own, calls, asked(std::move(request))));
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

// Whether elements are added to copies of all entries of tables in some kernel.
bool has_entries(const Variant& variant) {
    return variant.candidates.front().storage.entries > 0 ||
           std::ranges::any_of(variant.further, has_entries);
}

// Whether a call's sizes decide whether a kernel has room for these.
bool has_bound_entries(const Variant& variant) {
    return variant.candidates.front().storage.entries_are_bound ||
           std::ranges::any_of(variant.further, has_bound_entries);
}

// The same of a forward whose tables' entries are kinds of pairs.
bool has_bound_kinds(const Variant& variant) {
    return variant.request.terms.by_kinds.most_bound != 0 &&
           variant.candidates.front().decomposition.of == Decomposition::Of::by_kinds;
}

// Leaves kernels that read block masks of the tiles of `usual`, which are those that plans have;
// false if some kernel has no others.
bool keep_tiles(const KernelConfig& usual, Variant& variant) {
    const MaskTiling tiles = mask_tiling(usual, false);
    std::erase_if(variant.candidates, [&](const KernelConfig& config) {
        return config.has_block_mask && mask_tiling(config, false) != tiles;
    });
    return !variant.candidates.empty() &&
           std::ranges::all_of(variant.further,
                               [&](Variant& further) { return keep_tiles(usual, further); });
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

// Returns the variants of a program, of which the first one is for these calls: usual or outside.
Result<std::vector<Variant>> forward_variants_of(const TargetProgram& program, Calls calls) {
    auto schedule = asked_schedule(program);
    if (!schedule) return schedule.error();
    KernelRequest request = program.request(KernelKind::forward);
    request.generic_because = why_generic(program, KernelKind::forward);
    const bool is_usual = calls == Calls::usual;
    if (is_usual)
        if (auto checked = check_request(program.options(), request); !checked)
            return checked.error();
    request.schedule = *schedule;
    std::vector<Variant> variants = {
        make_variant(program, calls, is_usual ? request : of_single_call(request))};
    if (has_bound_kinds(variants.front())) {
        Variant others = make_variant(program, Calls::large_tables, without_bound_entries(request));
        if (keep_tiles(variants.front().candidates.front(), others))
            variants.push_back(std::move(others));
    }
    if (has_short_kernels(program, program.options().forward_kernel == ForwardKernel::automatic)) {
        add_short_variants(program, request, variants);
        add_specialized_short_variants(program, request, variants);
    }
    if (why_no_few_kernels(program).empty()) {
        KernelRequest of_few = generic_request(request);
        of_few.generic_because = "queries are few";
        of_few.sequences.has_few_queries = true;
        variants.push_back(make_variant(program, Calls::few_queries, of_few));
    }
    if (!is_generic(variants.front().candidates.front()))
        variants.push_back(make_variant(program, Calls::any, generic_request(request)));
    return variants;
}

Result<std::vector<Variant>> backward_variants_of(const TargetProgram& program, Calls first) {
    const CompileOptions& options = program.options();
    const std::string_view no_order = options.deterministic ? why_not_in_order(program) : "";
    KernelRequest request = program.request(KernelKind::backward_fused);
    request.generic_because = why_generic(program, KernelKind::backward_fused);
    const KernelRequest of_short =
        request; // a block has the whole dq of a sequence, so its order is fixed
    const bool is_split = options.backward_kernel == BackwardKernel::split || !no_order.empty();
    if (is_split) request.kind = KernelKind::backward_dkdv;
    const bool is_whole = is_split || stays_generic(request);
    const auto entries_alone = [&](Calls calls, OtherRequest asked) {
        auto alone = sharing_variant(program, calls, program.mod().entry_passes, asked);
        return alone && has_entries(*alone) ? std::move(alone) : std::nullopt;
    };
    const auto of_calls = [&](Calls calls, OtherRequest asked) {
        if (is_whole) return make_variant(program, calls, asked(request));
        auto sharing = sharing_variant(program, calls, program.mod().gradient_passes, asked);
        Variant usual =
            sharing ? *std::move(sharing) : make_variant(program, calls, asked(request));
        if (has_entries(usual)) return usual;
        auto alone = entries_alone(calls, asked);
        return alone ? *std::move(alone) : std::move(usual);
    };
    const bool is_usual = first == Calls::usual;
    std::vector<Variant> variants = {of_calls(first, is_usual ? unchanged : of_single_call)};
    const auto add_if_tiles_suit = [&](Variant variant) {
        if (keep_tiles(variants.front().candidates.front(), variant))
            variants.push_back(std::move(variant));
    };
    if (has_bound_entries(variants.front())) {
        const bool are_alone = !variants.front().candidates.front().storage.entries_are_bound;
        if (auto alone = entries_alone(Calls::large_tables, unchanged); alone && !are_alone)
            add_if_tiles_suit(*std::move(alone));
        add_if_tiles_suit(of_calls(Calls::large_tables, without_bound_entries));
    }
    if (is_usual && variants.front().further.empty())
        if (auto checked = check_request(options, request); !checked) return checked.error();
    if (passes::why_not_batches(program.mod()).empty() &&
        has_short_kernels(program, options.backward_kernel == BackwardKernel::automatic))
        add_short_variants(program, of_short, variants);
    if (!no_order.empty())
        for (KernelConfig& candidate : variants.front().candidates)
            candidate.reason += formatted("; not fused: {}", no_order);
    if (is_generic(variants.front().candidates.front())) return variants;
    if (needs_aligned_biases(variants.front()))
        variants.push_back(of_calls(Calls::unaligned_biases, without_biases));
    KernelRequest any = generic_request(request);
    // Only kernels that use TMA add to dq in a fixed order.
    if (options.deterministic) any.kind = KernelKind::backward_dkdv;
    variants.push_back(make_variant(program, Calls::any, any));
    return variants;
}

// Returns the variants of a pass. Where some calls keep indices inside of buffers, these have
// kernels of their own before those of others.
Result<std::vector<Variant>>
with_inside_calls(const TargetProgram& program,
                  Result<std::vector<Variant>> (*variants_of)(const TargetProgram&, Calls)) {
    const std::vector<passes::Mod>& mods = program.mod().inside_calls;
    if (mods.empty()) return variants_of(program, Calls::usual);
    const auto inside = [&](Calls calls) {
        return std::make_shared<const TargetProgram>(mods.front(), options_of(program, calls),
                                                     program.target());
    };
    const auto usual = inside(Calls::usual);
    auto found = variants_of(*usual, Calls::usual);
    if (!found || is_generic(found->front().candidates.front()))
        return variants_of(program, Calls::usual);
    std::vector<Variant> variants;
    for (Variant& variant : *found) {
        if (variant.calls != Calls::usual && variant.calls != Calls::large_tables) continue;
        if (variant.program == nullptr)
            variant.program = variant.calls == Calls::usual ? usual : inside(variant.calls);
        variants.push_back(std::move(variant));
    }
    auto others = variants_of(program, Calls::outside);
    if (!others) return others;
    std::ranges::move(*others, std::back_inserter(variants));
    return variants;
}

} // namespace

Result<std::vector<Variant>> forward_variants(const TargetProgram& program) {
    // Kinds of tables whose gradients are summed are nothing to it.
    const std::vector<passes::Mod>& mods = program.mod().inside_calls;
    if (mods.empty() || mods.front().inside_reads.empty())
        return forward_variants_of(program, Calls::usual);
    return with_inside_calls(program, forward_variants_of);
}

Result<std::vector<Variant>> backward_variants(const TargetProgram& program) {
    return with_inside_calls(program, backward_variants_of);
}

} // namespace flexc::plan
