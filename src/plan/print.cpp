// Describes a plan as text.
#include "plan/plan.h"

#include <algorithm>

#include "common/block_mask.h"
#include "common/sequences.h"
#include "passes/gradient_sum.h"
#include "plan/arch/family.h"
#include "plan/restrictions.h"
#include "support/text.h"

namespace flexc::plan {

namespace {

// Describes the memory of a kernel's block mask, in the terms of common/block_mask.h.
std::string block_mask_of(const MaskTiling& tiling) {
    const bool by_keys = tiling.by_keys;
    return formatted(
        "    its block mask: {} bytes for a row of tiles, of {} {}, and {} for each 32 tiles "
        "of {} {} in it\n",
        sizeof(TileRow) + sizeof(int), by_keys ? tiling.key_tile : tiling.query_tile,
        by_keys ? "keys" : "queries", sizeof(TileWord),
        by_keys ? tiling.query_tile : tiling.key_tile, by_keys ? "queries" : "keys");
}

std::string builder_of(const KernelConfig& config, const BlockMaskFacts& facts) {
    return formatted("  flexc_block_mask_facts, {}, flexc_block_mask_order: a block mask for {}{} "
                     "for each kernel that "
                     "has one; {} intervals of {} bytes for each tile of queries, {} of keys; {}\n",
                     config.entry,
                     facts.is_dense() ? text_of_heads(facts.by_batch, facts.by_head)
                     : facts.by_head  ? "each h and all requests"
                                      : "all h and requests",
                     facts.is_dense() ? "" : ", in each call,", facts.query_facts,
                     2 * sizeof(double), facts.key_facts, config.reason);
}

std::string reader_of(const KernelConfig& config) {
    return formatted("  {}, flexc_divide_keys: {}, where update() is given such\n", config.entry,
                     config.reason);
}

std::string text_of(const KernelConfig& config, bool of_requests) {
    const BlockShape& block = config.block;
    std::string text = formatted("  {}: tile {} x {}, {} warps, {} stages, {} bytes shared; {}\n",
                                 config.entry, block.query_tile, block.key_tile, block.warps,
                                 block.stages, block.shared_bytes, config.reason);
    if (config.has_block_mask) text += block_mask_of(mask_tiling(config, of_requests));
    if (config.schedule) text += formatted("    schedule: {}\n", text_of(*config.schedule));
    const Family& family = family_of(config);
    if (family.describe != nullptr) text += family.describe(config);
    return text;
}

std::string names_of(const std::vector<Region>& regions) {
    std::vector<std::string_view> names;
    for (const Region& region : regions)
        names.push_back(region.name);
    return joined(names, ", ");
}

std::string text_of(const Step& step, const PassPlan& pass) {
    if (const auto* fill = std::get_if<Fill>(&step))
        return formatted("zeros in {}", fill->region.name);
    if (std::holds_alternative<FillGradients>(step)) return "zeros in gradients of buffers";
    if (const auto* sums = std::get_if<RoundSums>(&step))
        return formatted("{} for each gradient that is summed exactly; reads exact_sums",
                         pass.kernels[sums->kernel].entry);
    if (const auto* gradients = std::get_if<RoundGradients>(&step))
        return formatted("{} for each gradient that is not f32",
                         pass.kernels[gradients->kernel].entry);
    const auto& launch = std::get<Launch>(step);
    std::string text =
        formatted("{}: {} blocks of {}", launch.entry, text_of(launch.blocks), launch.threads);
    if (launch.threads_y > 1) text += formatted(" x {}", launch.threads_y);
    text += " threads";
    if (!launch.known_blocks.terms.empty())
        text += formatted(", of known lengths at most {} blocks", text_of(launch.known_blocks));
    if (launch.is_persistent)
        text +=
            formatted(", at most {} for each multiprocessor",
                      launch.blocks_at_once == 1 ? "one" : std::to_string(launch.blocks_at_once));
    if (launch.starts_early) text += ", before the kernel ahead has ended";
    if (launch.by_heads && pass.heads_at_once != passes::HeadsAtOnce::all)
        text += pass.heads_at_once == passes::HeadsAtOnce::one
                    ? ", one launch for each head of keys"
                    : ", one launch for each batch entry";
    if (!launch.reads.empty()) text += "; reads " + names_of(launch.reads);
    if (!launch.writes.empty()) text += "; writes " + names_of(launch.writes);
    return text;
}

std::string text_of(const PassPlan& pass, std::string_view called) {
    std::string text =
        formatted("{}, in this order{}:\n", called,
                  pass.is_of_inside_calls
                      ? ", where sizes and params keep indices inside of buffers, and kinds few"
                      : "");
    for (const Step& step : pass.steps)
        text += formatted("  {}\n", text_of(step, pass));
    for (const WorkspaceRegion& region : pass.workspace) {
        text += formatted("  workspace {}: {} bytes times {}", region.region.name,
                          region.element_bytes, text_of(region.elements));
        if (!region.of_gradients.empty())
            text +=
                formatted(" and an element for each of {} gradients", region.of_gradients.size());
        text += "\n";
    }
    return text;
}

std::string_view calls_of(Calls calls) {
    switch (calls) {
    case Calls::usual: return "";
    case Calls::large_tables: return "tables of more entries";
    case Calls::short_sequences: return "many short sequences";
    case Calls::few_queries:
        return "few queries: at most 64 of all heads that share keys, if it is faster by sizes";
    case Calls::outside:
        return "sizes and params with indices outside of buffers, or with more kinds";
    case Calls::unaligned_biases: return "dense biases whose rows are not aligned";
    case Calls::any: return "tensors, scales and offsets that these kernels cannot take";
    }
    return "";
}

std::string rows_of(const SequenceForm& sequences) {
    if (sequences.most_rows == 0) return "";
    if (sequences.least_rows == 0) return formatted(", of up to {} rows", sequences.most_rows);
    return formatted(", of {} to {} rows", sequences.least_rows, sequences.most_rows);
}

std::string schedule_of(const KernelConfig& config) {
    return config.schedule ? formatted(", schedule: {}", text_of(*config.schedule)) : "";
}

// Returns the entries for which kernels of a variant have room, where a call says how many there
// are.
int most_entries(const Variant& variant) {
    const BackwardStorage& storage = variant.candidates.front().storage;
    int most =
        storage.entries_are_bound ? storage.entries : variant.request.terms.by_kinds.most_bound;
    for (const Variant& further : variant.further)
        most = std::max(most, most_entries(further));
    return most;
}

// Returns the calls of a variant that comes after another one.
std::string calls_of(const Variant& variant, const Variant& before) {
    std::string calls =
        std::string(calls_of(variant.calls)) + rows_of(variant.request.sequences);
    if (variant.calls == Calls::large_tables) calls += formatted(" than {}", most_entries(before));
    return calls;
}

bool has_short(const std::vector<Variant>& variants) {
    return std::ranges::count(variants, Calls::short_sequences, &Variant::calls) != 0;
}

} // namespace

std::string text_of(const KernelPlan& plan, const TargetProgram& program) {
    const CompileOptions& options = program.options();
    std::string text = formatted("for {}, {}, head dims {} and {}:\n", program.target().arch,
                                 name(options.dtype), options.head_dim, options.head_dim_v);
    std::string passes, others;
    const auto add = [&](const std::vector<Variant>& variants, std::string_view called) {
        if (variants.empty()) return;
        const Variant& first = variants.front();
        PassPlan pass = pass_of(program, first, first.candidates.front());
        for (const Variant& further : first.further)
            append(pass, pass_of(program, further, further.candidates.front()));
        for (const KernelConfig& kernel : pass.kernels)
            text += text_of(kernel, !program.mod().program.is_dense());
        passes += text_of(pass, called);
        for (std::size_t i = 1; i < variants.size(); ++i)
            others += formatted("{} for {}: {}{}\n", called, calls_of(variants[i], variants[i - 1]),
                                variants[i].candidates.front().entry,
                                schedule_of(variants[i].candidates.front()));
    };
    add(plan.forward, "forward");
    if (const std::string_view why = why_no_few_kernels(program);
        program.mod().program.is_dense() && !why.empty())
        others +=
            formatted("forward for {}: as for others; {}\n", calls_of(Calls::few_queries), why);
    if (plan.block_mask) text += builder_of(*plan.block_mask, plan.block_mask_facts);
    if (plan.lengths) text += reader_of(*plan.lengths);
    add(plan.backward, "backward");
    if (const std::string_view why = passes::why_not_batches(program.mod());
        !plan.backward.empty() && !why.empty() && has_short(plan.forward))
        others += formatted("backward for {}: as for others; {}\n",
                            calls_of(Calls::short_sequences), why);
    return text + passes + others;
}

} // namespace flexc::plan
