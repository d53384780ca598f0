// Describes the classes of captured reads.
#include <algorithm>
#include <cstdlib>
#include <optional>
#include <span>

#include "passes/captured_read.h"
#include "passes/describe.h"
#include "passes/gradient_sum.h"
#include "passes/mod.h"
#include "support/text.h"

namespace flexc::passes {

using analysis::AffineForm;
using analysis::Product;
using ir::NodeId;

namespace {

std::string text_of(const Mod& mod, const Product& product) {
    std::string text;
    for (const NodeId factor : product.factors)
        text += (text.empty() ? "" : " * ") + formula(mod.program, factor);
    if (text.empty()) return std::to_string(product.constant);
    if (product.constant != 1) text = std::to_string(product.constant) + " * " + text;
    return product.factors.size() == 1 && product.constant == 1 ? text : "(" + text + ")";
}

std::string text_of(const Mod& mod, const Count& count) {
    std::string text;
    if (count.constant != 1 || count.is_constant()) text = std::to_string(count.constant);
    for (const std::uint32_t size : count.sizes)
        text += (text.empty() ? "" : " * ") + mod.program.sizes[size];
    return text;
}

// "q_idx % 7", "(kv_idx - 1) // 7 % W".
std::string digit(const Mod& mod, std::string position, const AffineForm& offset,
                  const analysis::Grid::Axis& axis) {
    const bool is_position = axis.start.is(1) && !axis.end;
    if (!is_position && offset != AffineForm{}) {
        const std::int64_t constant = offset.constant;
        position = offset.rest.empty() ? formatted("({} {} {})", position, constant < 0 ? "-" : "+",
                                                   std::abs(constant))
                                       : "(" + position + " + ...)";
    }
    if (!axis.start.is(1)) position += " // " + text_of(mod, axis.start);
    if (axis.end)
        if (const auto period = analysis::quotient(*axis.end, axis.start))
            position += " % " + text_of(mod, *period);
    return position;
}

std::string text_of(const Mod& mod, const analysis::Grid& grid) {
    std::string text;
    for (const analysis::Grid::Axis& axis : grid.axes)
        text += (text.empty() ? "" : ", ") + digit(mod, "q_idx", grid.q_offset, axis) + " - " +
                digit(mod, "kv_idx", grid.kv_offset, axis);
    return text;
}

std::string obstacle_of(const Mod& mod, const ReadPiece& piece) {
    const std::string index =
        piece.culprit == ir::kNoNode ? "the address" : formula(mod.program, piece.culprit);
    switch (piece.obstacle) {
    case Obstacle::none: return "";
    case Obstacle::term_of_sum: return "it changes from term to term of a sum";
    case Obstacle::uses_score: return "its address uses the score";
    case Obstacle::other_positions:
        return index + " is no function of differences of digits of q_idx and kv_idx";
    case Obstacle::no_mixed_radix:
        return "its widths and offsets are those of no one grid: each width has to divide the next";
    case Obstacle::too_many_axes:
        return formatted("it uses more than {} digits of the positions", kMaxAxes);
    case Obstacle::no_single_address: return "more than one element meets an address";
    case Obstacle::not_affine: return index + " is not affine in q_idx and kv_idx";
    case Obstacle::mixes_positions:
        return index + " is no sum of a number of the query and one of the key";
    case Obstacle::unbounded: return "nothing but the lengths bounds " + index;
    case Obstacle::too_many_entries:
        return formatted("its slice has more than {} entries", kMostSmallEntries);
    }
    return "";
}

std::string what(const Mod& mod, const ReadPiece& piece) {
    switch (piece.read_class) {
    case ReadClass::constant: return "one address for a head";
    case ReadClass::row: return "one for a query";
    case ReadClass::column: return "one for a key";
    case ReadClass::distance_1d: return "one for a distance q_idx - kv_idx";
    case ReadClass::grid_distance: return "one for " + text_of(mod, piece.grid);
    case ReadClass::dense_bias: return "each element has its own";
    case ReadClass::shifted:
        return std::ranges::any_of(piece.shifts, &ShiftedIndex::is_clamped)
                   ? "each element has its own, but for those beyond a clamp"
                   : "each element has its own";
    case ReadClass::pair_of_kinds:
        return formatted("one for a kind of query, of {}, and of key, of {}",
                         text_of(mod, piece.query_kinds), text_of(mod, piece.key_kinds));
    case ReadClass::small_table:
    case ReadClass::large_table: break;
    }
    return formatted("a head's elements meet {} addresses at most", text_of(mod, piece.entries));
}

std::string where(const Mod& mod, const ReadPiece& piece) {
    std::string text;
    for (const auto& [condition, holds] : piece.where)
        text += (text.empty() ? "" : " and ") + std::string(holds ? "" : "not ") + "(" +
                formula(mod.program, condition) + ")";
    return text;
}

} // namespace

std::string describe_class(const Mod& mod, const CapturedRead& read) {
    const ReadPiece& decisive = read.decisive();
    const bool is_of_term =
        decisive.obstacle == Obstacle::term_of_sum && (read.uses.bits & analysis::kInsideHead) == 0;
    std::string text =
        formatted("  class: {}; {}", name(read.read_class),
                  is_of_term ? "one address for a head and term" : what(mod, decisive));
    if (read.is_whole()) {
        const std::string obstacle = obstacle_of(mod, decisive);
        if (!obstacle.empty() && read.read_class != ReadClass::dense_bias)
            text += formatted("; not {}: {}", name(class_before(read.read_class)), obstacle);
    }
    text += "\n";
    if (!read.is_whole())
        for (const ReadPiece& piece : read.pieces)
            text += formatted("    where {}: {}\n", where(mod, piece), name(piece.read_class));
    return text;
}

namespace {

// Why a gradient is added to memory element by element, and what to write instead.
struct Reason {
    std::string why, instead;
};

// Whether an index is the position itself, plus what is the same for a head.
bool is_position(const Mod& mod, NodeId index) {
    const AffineForm& form = mod.affine[index];
    return std::abs(form.q) + std::abs(form.kv) == 1 &&
           std::ranges::none_of(form.rest, [](const AffineForm::Term& term) {
               return (term.uses.bits & analysis::kInsideHead) != 0;
           });
}
bool has_position(const Mod& mod, const ir::Node& read) {
    return std::ranges::any_of(read.operands,
                               [&](NodeId index) { return is_position(mod, index); });
}

// What to write instead of the digits of keys in an index, which no tile of keys has; or nothing.
std::string instead_of_digits(const Mod& mod, NodeId read) {
    const ir::Graph& graph = mod.program.graph;
    for (const NodeId id : ir::reachable(graph, std::span(&read, 1))) {
        const ir::Node& node = graph[id];
        if (node.op != ir::Op::ifloordiv && node.op != ir::Op::imod) continue;
        const AffineForm& form = mod.affine[node.operands[0]];
        if (form.q != 0 || !is_position(mod, node.operands[0])) continue;
        if (graph[node.operands[1]].op != ir::Op::const_int)
            return formatted("such are summed on chip where the text has the width as a number: "
                             "write it instead of {}",
                             formula(mod.program, node.operands[1]));
        if (graph[node.operands[0]].op != ir::Op::kv_idx)
            return "such are summed on chip where kv_idx itself is divided, as in kv_idx // W and "
                   "kv_idx % W: put other tokens behind those that are counted";
    }
    return "";
}

Reason reason_of_kinds(const Mod& mod, const CapturedRead& read) {
    constexpr std::int64_t kFewKinds = 4;
    const ReadPiece& piece = read.decisive();
    const bool is_by_query = !piece.query_kinds.is_constant();
    const Count& kinds = is_by_query ? piece.key_kinds : piece.query_kinds;
    const std::string_view one = is_by_query ? "query" : "key",
                           other = is_by_query ? "key" : "query";
    Reason reason{formatted("it has an entry for each {} and kind of {}", one, other), ""};
    if (is_by_query) reason.instead = instead_of_digits(mod, read.read);
    if (reason.instead.empty() && kinds.is_constant() && kinds.constant <= kFewKinds)
        reason.instead =
            formatted("write a read for each kind, and choose: where(kind == 0, t[{0}, "
                      "0], t[{0}, 1]) is summed once for a {1}",
                      is_by_query ? "q_idx" : "kv_idx", one);
    return reason;
}

Reason reason_of_large(const Mod& mod, const CapturedRead& read) {
    const ReadPiece& piece = read.decisive();
    Reason reason{obstacle_of(mod, piece), ""};
    if (piece.obstacle == Obstacle::too_many_entries)
        reason.instead =
            formatted("tables of up to {} entries for a head are summed on chip: bound "
                      "the index, as clamp(i, 0, N - 1) does",
                      kMostSmallEntries);
    else if (piece.obstacle == Obstacle::unbounded &&
             has_position(mod, mod.program.graph[read.read]))
        reason.instead = "of a table with a line for each query or key, elements are summed where "
                         "the place in it is kv_idx - q_idx, clamped or not, but no other function";
    else if (piece.obstacle == Obstacle::unbounded)
        reason.instead = "give the table's dimensions names or numbers of its own instead of Q_LEN "
                         "and KV_LEN, if it has few entries; or index it by q_idx and kv_idx "
                         "themselves";
    return reason;
}

// Of a gradient that is added element by element; nothing where that takes no longer.
std::optional<Reason> reason_of(const Mod& mod, const CapturedRead& read) {
    const ir::Node& node = mod.program.graph[read.read];
    switch (read.read_class) {
    case ReadClass::large_table: return reason_of_large(mod, read);
    case ReadClass::pair_of_kinds: return reason_of_kinds(mod, read);
    case ReadClass::dense_bias:
        if ((mod.dependence[node.operands.back()].bits & analysis::kInsideHead) != 0) return {};
        return Reason{"keys that follow each other are not side by side in memory",
                      "make kv_idx the last index"};
    default: return {};
    }
}

} // namespace

dsl::Diagnostics read_hints(const Mod& mod) {
    dsl::Diagnostics hints;
    const std::span<const Mod> kernels = mod.gradient_passes.empty()
                                             ? std::span(&mod, 1)
                                             : std::span<const Mod>(mod.gradient_passes);
    for (const Mod& kernel : kernels)
        for (const ReadGradient& gradient : kernel.gradients) {
            const CapturedRead* read = captured_read(kernel, gradient.read);
            if (read == nullptr || kernel.counters[gradient.read] != ir::kNoNode ||
                gradient_sum(kernel, gradient, usual_sums(kernel)) != GradientSum::element)
                continue;
            const std::optional<Reason> reason = reason_of(kernel, *read);
            if (!reason) continue;
            const ir::Node& node = kernel.program.graph[gradient.read];
            hints.push_back(
                {.severity = dsl::Severity::warning,
                 .span = node.span,
                 .message = formatted("the gradient of '{}' is added to memory element "
                                      "by element: {}",
                                      kernel.program.buffers[node.symbol].name, reason->why),
                 .hint = reason->instead});
        }
    return hints;
}

} // namespace flexc::passes
