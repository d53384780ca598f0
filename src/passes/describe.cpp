#include "passes/describe.h"

#include <algorithm>
#include <array>

#include "analysis/key_index_2d.h"
#include "passes/decompose.h"
#include "passes/dense_bias.h"
#include "passes/distance_value.h"
#include "passes/gradient_sum.h"
#include "passes/hidden_scores.h"
#include "passes/roots.h"
#include "passes/shifted_read.h"
#include "passes/staged_table.h"
#include "passes/table_gradient.h"
#include "passes/term_gradient.h"
#include "support/text.h"

namespace flexc::passes {

using analysis::Dependence;
using ir::NodeId;
using ir::Op;

namespace {

const ReadGradient* gradient_of(const std::vector<ReadGradient>& gradients, NodeId read) {
    for (const ReadGradient& gradient : gradients)
        if (gradient.read == read) return &gradient;
    return nullptr;
}

std::string checks(const Mod& mod, NodeId read) {
    const std::vector<bool>& proven = mod.ranges.in_range[read];
    if (std::ranges::count(mod.inside_reads, read) != 0)
        return "in range by a call's sizes and params, else checked";
    if (std::ranges::all_of(proven, [](bool inside) { return inside; })) return "always in range";
    std::string text;
    for (std::size_t i = 0; i < proven.size(); ++i)
        if (!proven[i]) text += (text.empty() ? "" : ", ") + std::to_string(i);
    return (proven.size() == 1 ? "index checked" : "checked: index " + text);
}

// Describes which elements of the score matrix add to one address of the gradient.
std::string summed_over(const Mod& mod, NodeId read) {
    const ir::Node& node = mod.program.graph[read];
    Dependence direct; // indices that are a plain b, h, q_idx or kv_idx tell addresses apart
    bool derived = false;
    for (NodeId index : node.operands) {
        const Op op = mod.program.graph[index].op;
        if (op == Op::b || op == Op::h || op == Op::q_idx || op == Op::kv_idx)
            direct = direct | mod.dependence[index];
        else if (!(mod.dependence[index] == Dependence{}))
            derived = true;
    }
    constexpr std::array kAll = {Dependence::b, Dependence::h, Dependence::q, Dependence::kv};
    Dependence rest;
    for (Dependence::Bit bit : kAll)
        if (!direct.has(bit)) rest = rest | Dependence{static_cast<std::uint8_t>(bit)};
    if (rest == Dependence{}) return "one element for each address";
    return "sum over " + analysis::describe(rest) + (derived ? " of those with this index" : "");
}

// Describes which elements read the same address: those of one distance, adjacent keys, or others.
std::string pattern(const Mod& mod, NodeId read) {
    if (is_of_distance(mod, read)) return "; one for each distance q_idx - kv_idx";
    const std::array roots = {read};
    for (const std::int64_t width : analysis::key_divisors(mod.program.graph, roots)) {
        const analysis::KeyUse use = mod.key_uses[read].with(width);
        const std::string keys = std::to_string(width) + " keys";
        if (use == analysis::KeyUse::quotient) return "; one for each row of " + keys;
        if (use == analysis::KeyUse::remainder) return "; repeats every " + keys;
    }
    return "";
}

bool is_by_kinds(const Mod& mod, const KeyKinds& kinds, NodeId read) {
    return kinds.found() && mod.place[read] == Place::element &&
           std::ranges::any_of(mod.program.graph[read].operands, [&](NodeId index) {
               return std::ranges::count(kinds.indices, index) != 0;
           });
}

// Describes how a warp-specialized fused backward sums the gradient of a read.
std::string describe_sum(const Mod& mod, const ReadGradient& gradient) {
    const TileSums tile = usual_sums(mod);
    const GradientSum sum = gradient_sum(mod, gradient, tile);
    if (sum == GradientSum::table && gradient.read == read_by_kinds(mod))
        return formatted(
            "by products with ones of its kinds, once for an entry and head{}{}",
            sums_kinds_beside(mod) ? ", where there is room beside other tables"
            : std::ranges::count(mod.few_kinds, gradient.read) != 0 ? ", if a call has few of these"
                                                                    : "",
            gradient.is_weighted ? ", from a tile of its elements beside that of dS" : "");
    std::string text(description(gradient, sum));
    if (sum == GradientSum::table && entries_of_elements(mod).exist())
        return formatted(
            "by the threads that have dS, in copies of all entries on chip, which stay from "
            "tile to tile, where this kernel or one of its own has room, else {}",
            text);
    if (sum == GradientSum::quotient || sum == GradientSum::remainder)
        text += formatted(", in rows of {} keys; of wide heads {}", tile.key_width,
                          description(gradient, GradientSum::element));
    return text;
}

// The mod of the kernel that sums the gradient of a read, where several share them; and which of
// them it is.
struct Summing {
    const Mod& mod;
    std::string kernel;
};
Summing summing(const Mod& mod, std::span<const Mod> kernels, NodeId read) {
    for (std::size_t i = 0; i < kernels.size(); ++i)
        if (gradient_of(kernels[i].gradients, read) != nullptr)
            return {kernels[i], formatted(" (kernel {} of {})", i + 1, kernels.size())};
    return {mod, ""};
}

// Returns the reads of whose entries a generic backward sums several gradients at once.
std::vector<NodeId> sharing_sums(const Mod& mod) {
    const std::vector<ReadGradient> gradients = summed_by_entries(mod);
    const std::vector<std::size_t> first_of = first_of_same_sums(mod, gradients);
    std::vector<int> counts(gradients.size());
    for (const std::size_t first : first_of)
        ++counts[first];
    std::vector<NodeId> reads;
    for (std::size_t i = 0; i < gradients.size(); ++i)
        if (counts[first_of[i]] > 1) reads.push_back(gradients[i].read);
    return reads;
}

// Describes how a generic backward sums it.
std::string describe_generic_sum(const Mod& mod, std::span<const NodeId> sharing,
                                 const ReadGradient& gradient) {
    if (gradient.entry_sum != EntrySum::none)
        return formatted("in a copy of what a tile meets on chip, once for an entry, head and tile "
                         "of keys{}{}, where there is room",
                         gradient.entry_sum == EntrySum::weighted
                             ? ", from a tile of its elements beside that of dS"
                             : "",
                         std::ranges::count(sharing, gradient.read) != 0
                             ? ", for all tables of these entries"
                             : "");
    switch (mod.place[gradient.read]) {
    case Place::launch:
    case Place::head: return std::string(description(gradient, GradientSum::head));
    case Place::row: return "over a tile's keys, once for a query";
    case Place::column: return "over a tile's queries, once for a key";
    case Place::element: break;
    }
    std::string text(description(gradient, GradientSum::element));
    if (gradient.is_shifted &&
        std::ranges::find(mod.shifted_reads, gradient.read, &ShiftedRead::read)->is_clamped())
        text += ", and over the part of a line that is beyond a clamp";
    return text;
}

// Describes how a backward of many short sequences sums it.
std::string describe_short_sum(const Mod& mod, const ReadGradient& gradient) {
    if (const std::string_view why = why_not_batches(mod); !why.empty())
        return formatted("as in others: {}", why);
    return std::string(description(gradient, gradient_sum(mod, gradient, {.sums_batches = true})));
}

// Describes how terms are summed, by the place of their read.
std::string_view over_tiles_of_terms(Place place) {
    switch (place) {
    case Place::launch:
    case Place::head: return "over a tile for each term, once for a head and term";
    case Place::row: return "over a tile's keys for each term, once for a query and term";
    case Place::column: return "over a tile's queries for each term, once for a key and term";
    case Place::element: break;
    }
    return "in a loop over the terms, one by one";
}

// Describes how the gradient of what a sum's terms read is summed.
std::string describe_sum_of_terms(const Mod& whole, std::span<const Mod> kernels, NodeId read) {
    const Summing by = summing(whole, kernels, read);
    const ReadGradient& gradient = *gradient_of(by.mod.gradients, read);
    const std::string_view over_tiles = over_tiles_of_terms(place_of_term(whole, read));
    if (!is_of_terms_by_distance(by.mod, gradient) && by.kernel.empty())
        return std::string(over_tiles);
    return formatted(
        "in a warp-specialized fused backward {}{}; in others {}",
        is_of_terms_by_distance(by.mod, gradient)
            ? "over a tile's diagonals, once for all terms, and then once for a distance and term"
            : over_tiles,
        by.kernel, over_tiles);
}

// Describes how the gradient of what elements read is summed.
std::string describe_sums(const Mod& mod, std::span<const Mod> kernels,
                          std::span<const NodeId> sharing, const ReadGradient& gradient) {
    const Summing by = summing(mod, kernels, gradient.read);
    return formatted("in a warp-specialized fused backward {}{}; in a generic one {}; of short "
                     "sequences {}",
                     describe_sum(by.mod, *gradient_of(by.mod.gradients, gradient.read)), by.kernel,
                     describe_generic_sum(mod, sharing, gradient),
                     describe_short_sum(mod, gradient));
}

std::vector<bool> nodes_under(const ir::Graph& graph, const std::vector<NodeId>& roots) {
    std::vector<bool> under(graph.size(), false);
    for (const NodeId id : ir::reachable(graph, roots))
        under[id] = true;
    return under;
}

// Ways of a warp-specialized forward to read what elements need.
struct ForwardReads {
    std::vector<ShiftedRead> shifted;
    DecomposedMod decomposed;
    KeyIndex2d index_2d;
    KeyKinds kinds;
    std::vector<bool> of_score,
        by_distance; // of nodes: values that distances have, and their parts

    explicit ForwardReads(const Mod& mod)
        : decomposed(decompose_score(mod)), index_2d(key_index_2d(mod, decomposed.parts)),
          of_score(nodes_under(mod.program.graph, {mod.score})),
          by_distance(nodes_under(decomposed.mod.program.graph, decomposed.parts.distance_values)) {
        Mod with_shifts = mod;
        if (mod.program.is_dense()) shifted = stage_shifts(with_shifts, {mod.score});
        // Elements would read from memory what tables on chip have.
        if (index_2d.width != 0 && std::ranges::any_of(mod.order, [&](NodeId id) {
                return may_be_staged(mod, id) &&
                       mod.key_uses[id].with(index_2d.width) == analysis::KeyUse::other;
            }))
            index_2d = {};
        if (index_2d.width == 0) kinds = decompose_score_with_kinds(mod).parts.kinds;
    }
};

// Describes those of one read, a line for each; of what elements do not read themselves, none.
std::string describe_ways(const Mod& mod, const ForwardReads& forward, NodeId read) {
    const auto& [shifted, decomposed, index_2d, kinds, of_score, by_distance] = forward;
    const ScoreParts& parts = decomposed.parts;
    const std::string start = "  read: in a warp-specialized forward ";
    std::string text;
    const bool by_kinds = is_by_kinds(mod, kinds, read);
    if (by_kinds && kinds.are_of_pairs)
        text += formatted(
            "{}once for a head and each of {} kinds of pairs of a query and a key; which kind each "
            "pair is of is stored before it as {}, once for all heads; for elements from a copy "
            "{}in shared memory, where there is room\n",
            start, kinds.count, kinds.count <= kMostByteKinds ? "a byte" : "two bytes",
            kinds.count <= kMostByteKinds ? "for each lane " : "");
    else if (by_kinds)
        text += formatted("{}once for a query and each of {} kinds of keys; for elements with the "
                          "products of queries and keys, where columns for the kinds are at most a "
                          "quarter of a head's, else from a copy for each thread in shared memory, "
                          "where there is room\n",
                          start, kinds.count);
    const analysis::KeyUse use =
        index_2d.width == 0 ? analysis::KeyUse::none : mod.key_uses[read].with(index_2d.width);
    const bool is_of_element =
        mod.place[read] == Place::element && mod.program.graph[read].type == ir::Type::real;
    if (is_of_element && use == analysis::KeyUse::quotient)
        text += formatted("{}once for a query and row of {} keys, where there is room\n", start,
                          index_2d.width);
    if (is_of_element && use == analysis::KeyUse::remainder)
        text += formatted("{}once for a query and place in rows of {} keys, where there is room\n",
                          start, index_2d.width);
    if (may_be_staged(mod, read))
        text += formatted("  read: {}in a warp-specialized forward from a copy of the head's slice "
                          "in shared memory, where there is room\n",
                          text.empty() ? "" : "else ");
    if (read == parts.bias_read)
        text += formatted("{}from tiles in shared memory{}\n", start,
                          parts.bias_band.found() ? "; those outside of the band of diagonals in "
                                                    "which it is used are not copied"
                                                  : "");
    if (const auto of_read = std::ranges::find(shifted, read, &ShiftedRead::read);
        of_read != shifted.end())
        text +=
            formatted("{}from tiles in shared memory, copied {} by {}, where there is room{}\n",
                      start, of_read->by_key ? "key" : "query", of_read->by_key ? "key" : "query",
                      have_ends(shifted)
                          ? "; of tiles beyond the clamps of all such reads, one element a line"
                          : "");
    if (is_of_element && by_distance[read]) text += start + "once for each distance, before it\n";
    if (text.empty() && is_of_element && of_score[read] && mod.counters[read] == ir::kNoNode)
        text = start + "from memory, element by element\n";
    if (read == mod.shifted_bias.read)
        text +=
            "  read: in a warp-specialized backward likewise, where there is room and no table is "
            "summed\n";
    return text;
}

std::string describe_read(const Mod& mod, std::span<const Mod> kernels,
                          std::span<const NodeId> sharing, const ForwardReads& forward,
                          NodeId read) {
    std::string text = formula(mod.program, read) + ": uses " +
                       analysis::describe(mod.dependence[read]) + "; computed per " +
                       std::string(name(mod.place[read])) + pattern(mod, read) + "; " +
                       checks(mod, read) + "\n" + describe_ways(mod, forward, read);
    if (const CapturedRead* captured = captured_read(mod, read))
        text += describe_class(mod, *captured);
    if (const ReadGradient* gradient = gradient_of(mod.gradients, read))
        text += formatted("  gradient: {}; {}\n", summed_over(mod, read),
                          mod.counters[read] != ir::kNoNode
                              ? describe_sum_of_terms(mod, kernels, read)
                              : describe_sums(mod, kernels, sharing, *gradient));
    if (gradient_of(mod.sink_gradients, read) != nullptr)
        text += "  gradient of the sink: once for each row, before the other gradients\n";
    return text;
}

bool is_constant(const Mod& mod, NodeId id, bool value) {
    const ir::Node& node = mod.program.graph[id];
    return node.op == Op::const_bool && (node.integer != 0) == value;
}

// Describes how kernels find the tiles to visit.
std::string tiles_of(const Mod& mod) {
    using analysis::MaskTier;
    switch (mod.mask_tier) {
    case MaskTier::constant:
    case MaskTier::closed_form:
        return "tiles: a range for each row of tiles, computed in the kernel; no block mask\n";
    case MaskTier::tile_tests:
        return "tiles: a block mask, by intervals of what queries and keys alone give in each "
               "tile\n";
    case MaskTier::exhaustive:
        return "tiles: a block mask, by evaluating the elements of each tile\n";
    }
    return "";
}

std::string describe_clamps(const Mod& mod) {
    const analysis::Band& band = mod.band;
    const auto end = [&](const std::vector<NodeId>& shift, NodeId least, NodeId most) {
        std::string text;
        const auto clamp = [&](std::string_view function, NodeId node) {
            if (node == ir::kNoNode) return;
            const std::string bound = formula(mod.program, node);
            text = text.empty() ? bound : formatted("{}({}, {})", function, text, bound);
        };
        if (!shift.empty()) text = "q_idx + " + formula(mod.program, shift[0]);
        clamp("max", least);
        clamp("min", most);
        return text;
    };
    std::string text;
    const auto add = [&](std::string_view what, const std::string& bound) {
        if (!bound.empty()) text += formatted("{} {}\n", what, bound);
    };
    const analysis::Clamps& clamps = *band.clamps;
    add("visible: kv_idx >=", end(band.low, clamps.first_least, clamps.first_most));
    add("visible: kv_idx <=", end(band.high, clamps.last_least, clamps.last_most));
    add("visible: q_idx >=", end({}, clamps.least_query, ir::kNoNode));
    add("visible: q_idx <=", end({}, ir::kNoNode, clamps.most_query));
    return text + "and nothing else is asked\n";
}

} // namespace

std::string describe_ir(const Mod& mod) {
    std::vector<ir::NamedRoot> roots = {{"score", mod.score}, {"mask", mod.mask}};
    if (mod.sink != ir::kNoNode) roots.push_back({"sink", mod.sink});
    return ir::print(mod.program, roots);
}

std::string describe_gradient(const Mod& mod) {
    if (mod.d_score == ir::kNoNode) return "# compiled without a backward\n";
    std::vector<ir::NamedRoot> roots = {{"score", mod.score}, {"d_score", mod.d_score}};
    std::string reads;
    for (std::size_t i = 0; i < mod.gradients.size(); ++i) {
        const std::string read = "read_" + std::to_string(i);
        roots.push_back({read, mod.gradients[i].read});
        roots.push_back({"d_" + read, mod.gradients[i].partial});
        reads += "# " + read + " is " + formula(mod.program, mod.gradients[i].read) + "\n";
    }
    if (mod.sink != ir::kNoNode) roots.push_back({"sink", mod.sink});
    for (std::size_t i = 0; i < mod.sink_gradients.size(); ++i) {
        const std::string read = "sink_read_" + std::to_string(i);
        roots.push_back({read, mod.sink_gradients[i].read});
        roots.push_back({"d_" + read, mod.sink_gradients[i].partial});
        reads += "# " + read + " is " + formula(mod.program, mod.sink_gradients[i].read) + "\n";
    }
    std::string text = ir::print(mod.program, roots) + reads;
    for (std::uint32_t i = 0; i < mod.program.buffers.size(); ++i) {
        if (mod.program.buffers[i].grad && !has_gradient(mod, i))
            text += "# the gradient of " + mod.program.buffers[i].name + " is zero\n";
    }
    return text;
}

std::string describe_dependence(const Mod& mod, std::span<const Mod> kernels) {
    std::string text = "score_mod uses " + analysis::describe(mod.dependence[mod.score]) + "\n";
    text += "mask_mod uses " + analysis::describe(mod.dependence[mod.mask]) + "\n";
    if (mod.sink != ir::kNoNode)
        text += "sink uses " + analysis::describe(mod.dependence[mod.sink]) + "; computed per " +
                std::string(name(mod.place[mod.sink])) + ", when a row ends\n";
    if (mod.d_score != ir::kNoNode)
        text +=
            "d score_mod / d score uses " + analysis::describe(mod.dependence[mod.d_score]) + "\n";
    const ForwardReads forward(mod);
    const std::vector<NodeId> sharing = sharing_sums(mod);
    for (NodeId id : mod.order)
        if (mod.program.graph[id].op == Op::read)
            text += describe_read(mod, kernels, sharing, forward, id);
    return text;
}

namespace {

std::string describe_visible(const Mod& mod) {
    if (is_constant(mod, mod.mask, true)) return "everything is visible\n";
    if (is_constant(mod, mod.mask, false)) return "nothing is visible\n";
    std::string text = "visible where " + formula(mod.program, mod.mask) + "\n";
    text += "uses " + analysis::describe(mod.dependence[mod.mask]) + "\n";
    text += tiles_of(mod);
    if (mod.band.clamps) return text + describe_clamps(mod);
    if (!mod.band.found()) return text + "no band of diagonals was found\n";
    for (NodeId low : mod.band.low)
        text += "band: kv_idx - q_idx >= " + formula(mod.program, low) + "\n";
    for (NodeId high : mod.band.high)
        text += "band: kv_idx - q_idx <= " + formula(mod.program, high) + "\n";
    return text + (mod.band.exact ? "everything in the band is visible\n"
                                  : "in the band the mask decides\n");
}

// Describes what the CPU evaluates for each tile in addition.
std::string describe_cpu_tiles(const Mod& mod) {
    if (mod.out_of_range != ir::kNoNode) return "";
    std::string text;
    if (!is_constant(mod, mod.mask, true) && !is_constant(mod, mod.mask, false) &&
        !(mod.band.found() && mod.band.exact))
        text +=
            "on a CPU: the mask of a tile that is left open is evaluated before the tile's scores "
            "are computed\n";
    Mod evaluated = mod;
    if (const auto hidden = find_hidden_scores(evaluated))
        text += formatted("on a CPU: tiles of which every score is -inf are left out: where {}, if "
                          "scores are finite\n",
                          formula(evaluated.program, hidden->of_moderate));
    return text;
}

} // namespace

std::string describe_mask(const Mod& mod) {
    return describe_visible(mod) + describe_cpu_tiles(mod);
}

} // namespace flexc::passes
