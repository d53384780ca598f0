// Describes the classes of captured reads.
#include <algorithm>

#include "passes/captured_read.h"
#include "passes/describe.h"
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

dsl::Diagnostics read_hints(const Mod& mod) {
    dsl::Diagnostics hints;
    for (const CapturedRead& read : mod.captured_reads) {
        const ir::Node& node = mod.program.graph[read.read];
        const ir::Buffer& buffer = mod.program.buffers[node.symbol];
        if (!buffer.grad || read.read_class != ReadClass::large_table) continue;
        const ReadPiece& piece = read.decisive();
        if (piece.obstacle == Obstacle::term_of_sum) continue; // of a loop of its own
        std::string hint;
        switch (piece.obstacle) {
        case Obstacle::too_many_entries:
            hint = formatted("tables of up to {} entries for a head are summed on chip: bound the "
                             "index, as clamp(i, 0, N - 1) does",
                             kMostSmallEntries);
            break;
        case Obstacle::unbounded:
            hint = "give the table's dimensions names or numbers of its own instead of Q_LEN and "
                   "KV_LEN, if it has few entries; or index it by q_idx and kv_idx themselves";
            break;
        default: break;
        }
        hints.push_back({.severity = dsl::Severity::warning,
                         .span = node.span,
                         .message = formatted("the gradient of '{}' is added to memory element by "
                                              "element: {}",
                                              buffer.name, obstacle_of(mod, piece)),
                         .hint = std::move(hint)});
    }
    return hints;
}

} // namespace flexc::passes
