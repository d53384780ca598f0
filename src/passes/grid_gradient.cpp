#include "passes/grid_gradient.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "passes/gradient_sum.h"
#include "passes/table_gradient.h"

namespace flexc::passes {

using analysis::Dependence;
using analysis::Grid;
using ir::NodeId;

namespace {

// A distance has 2^places sums.
constexpr std::size_t kMostPlaces = 2;
// Eight queries and eight keys are summed at once if digits begin at multiples of eight; otherwise
// up to four, one of which begins a digit. Widths and offsets beyond kMost are lengths.
constexpr std::int64_t kStep = 8, kMost = std::int64_t{1} << 24;
// With fewer tokens than this, there are no fewer sums by distance than elements, so tables are
// summed whole.
constexpr std::int64_t kFewTokens = 256;

bool has_room(std::int64_t x) { return -kMost <= x && x <= kMost; }
bool is_multiple(std::int64_t x, std::int64_t of) { return x % of == 0; }
bool is_aligned(const DigitPlace& place) {
    return is_multiple(place.width, kStep) && is_multiple(place.q_offset, kStep) &&
           is_multiple(place.kv_offset, kStep);
}
// Whether every digit begins where one of the lowest place does.
bool begin_together(const std::vector<DigitPlace>& places) {
    const DigitPlace& lowest = *std::ranges::min_element(places, {}, &DigitPlace::width);
    return lowest.width >= kStep && std::ranges::all_of(places, [&](const DigitPlace& place) {
               return is_multiple(place.width, lowest.width) &&
                      is_multiple(place.q_offset - lowest.q_offset, lowest.width) &&
                      is_multiple(place.kv_offset - lowest.kv_offset, lowest.width);
           });
}

bool add_place(std::vector<DigitPlace>& places, const Grid& grid, const analysis::Product& start) {
    if (start.is(1)) return true;
    if (!start.factors.empty() || !grid.q_offset.is_constant() || !grid.kv_offset.is_constant())
        return false;
    const DigitPlace place{start.constant, grid.q_offset.constant, grid.kv_offset.constant};
    if (!has_room(place.width) || !has_room(place.q_offset) || !has_room(place.kv_offset))
        return false;
    if (std::ranges::find(places, place) == places.end()) places.push_back(place);
    return places.size() <= kMostPlaces;
}

// Splits a condition that must equal `value` into conditions on q alone and on kv alone; false if
// that is not possible.
bool add_condition(const Mod& mod, NodeId id, bool value, analysis::Assumptions& conditions) {
    constexpr std::size_t kMostConditions = 8;
    const ir::Node& node = mod.program.graph[id];
    if (node.op == ir::Op::bnot) return add_condition(mod, node.operands[0], !value, conditions);
    if (node.op == (value ? ir::Op::band : ir::Op::bor))
        return add_condition(mod, node.operands[0], value, conditions) &&
               add_condition(mod, node.operands[1], value, conditions);
    const Dependence uses = mod.dependence[id];
    if ((uses.bits & analysis::kPositions) == analysis::kPositions || uses.has(Dependence::score) ||
        mod.counters[id] != ir::kNoNode)
        return false;
    conditions.emplace_back(id, value);
    return conditions.size() <= kMostConditions;
}

// If the gradient is a choice between 0 and a number, returns the conditions for the number; no
// conditions if it is a multiple of the score's gradient.
std::optional<analysis::Assumptions> conditions_of(const Mod& mod, const ReadGradient& gradient) {
    analysis::Assumptions conditions;
    if (gradient.choice != ir::kNoNode) return {};
    if (is_gradient_of_score(mod, gradient) || gradient.sum_factor != ir::kNoNode)
        return conditions;
    const ir::Graph& graph = mod.program.graph;
    const auto is_constant = [&](NodeId id, double value) {
        return graph[id].op == ir::Op::const_real && graph[id].real == value;
    };
    // The choice must multiply d loss / d score itself.
    if (!is_constant(mod.d_score, 1)) return {};
    NodeId chosen = gradient.partial;
    while (graph[chosen].op == ir::Op::fselect) {
        const std::vector<NodeId>& operands = graph[chosen].operands;
        const bool takes_first = is_constant(operands[2], 0);
        if (!takes_first && !is_constant(operands[1], 0)) return {};
        if (!add_condition(mod, operands[0], takes_first, conditions)) return {};
        chosen = operands[takes_first ? 1 : 2];
    }
    if (graph[chosen].op != ir::Op::const_real || conditions.empty()) return {};
    std::ranges::sort(conditions);
    return conditions;
}

// The grid of a read that has the same one for all elements; else null.
const Grid* grid_of(const Mod& mod, const ReadGradient& gradient) {
    const CapturedRead* read = captured_read(mod, gradient.read);
    if (read->read_class != ReadClass::grid_distance || !read->is_whole()) return {};
    return &read->pieces[0].grid;
}

// Least number of tokens if the read meets all of its slice and the program's text gives its
// extent.
std::optional<std::int64_t> tokens_of(const Mod& mod, NodeId read) {
    const ReadPiece& piece = captured_read(mod, read)->pieces[0];
    const Grid::Axis &first = piece.grid.axes.front(), &last = piece.grid.axes.back();
    if (last.end) return 0; // it is met again and again
    if (!piece.entries.is_constant() || piece.entries.constant > kFewTokens) return {};
    return piece.entries.constant * first.start.constant;
}

bool has_few_tokens(const Mod& mod) {
    std::int64_t most = 0;
    for (const ReadGradient& gradient : mod.gradients) {
        if (!gradient.is_of_table) continue;
        const auto tokens = tokens_of(mod, gradient.read);
        if (!tokens) return false;
        most = std::max(most, *tokens);
    }
    return 0 < most && most <= kFewTokens;
}

} // namespace

void find_grid_gradients(Mod& mod) {
    std::vector<DigitPlace> places;
    std::optional<analysis::Assumptions> conditions;
    bool sums_distances = false;
    for (const ReadGradient& gradient : mod.gradients) {
        if (!gradient.is_of_table) {
            sums_distances |= gradient_sum(mod, gradient) == GradientSum::distance;
            continue;
        }
        const Grid* grid = grid_of(mod, gradient);
        auto found = conditions_of(mod, gradient);
        if (grid == nullptr || !found || found != conditions.value_or(*found)) return;
        conditions = std::move(found);
        for (const Grid::Axis& axis : grid->axes)
            if (!add_place(places, *grid, axis.start) ||
                (axis.end && !add_place(places, *grid, *axis.end)))
                return;
    }
    if (places.empty() || has_few_tokens(mod)) return;
    // With conditions, sums are not over whole diagonals and cannot be shared with reads by
    // distance.
    if (!conditions->empty() && sums_distances) return;
    if (!std::ranges::all_of(places, is_aligned) && !begin_together(places)) return;
    if (!conditions->empty() && !begin_together(places)) return;
    mod.digit_places = std::move(places);
    for (ReadGradient& gradient : mod.gradients)
        gradient.is_of_grid = gradient.is_of_table;
}

analysis::Assumptions grid_conditions(const Mod& mod) {
    const auto grid = std::ranges::find(mod.gradients, true, &ReadGradient::is_of_grid);
    return grid == mod.gradients.end()
               ? analysis::Assumptions()
               : conditions_of(mod, *grid).value_or(analysis::Assumptions());
}

NodeId distance_factor(const Mod& mod, const ReadGradient& gradient) {
    return gradient.is_of_grid && gradient.sum_factor == ir::kNoNode ? table_choice(mod, gradient)
                                                                     : gradient.sum_factor;
}

bool is_grid_aligned(const Mod& mod) {
    return std::ranges::all_of(mod.digit_places, is_aligned) && grid_conditions(mod).empty();
}

} // namespace flexc::passes
