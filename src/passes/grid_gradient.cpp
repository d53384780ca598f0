#include "passes/grid_gradient.h"

#include <algorithm>
#include <optional>

#include "passes/gradient_sum.h"

namespace flexc::passes {

using analysis::Grid;
using ir::NodeId;

namespace {

// A distance has 2 to the power of the places sums.
constexpr std::size_t kMostPlaces = 2;
// Eight queries and eight keys are summed at once. Widths and offsets beyond kMost are lengths.
constexpr std::int64_t kStep = 8, kMost = std::int64_t{1} << 24;
// Windows of fewer tokens than this have so few elements that sums for each distance of a head are
// no fewer than elements, and their tables are summed whole.
constexpr std::int64_t kFewTokens = 1024;

bool is_step(std::int64_t x) { return x % kStep == 0 && -kMost <= x && x <= kMost; }

bool add_place(std::vector<BorrowPlace>& places, const Grid& grid, const analysis::Product& start) {
    if (start.is(1)) return true;
    if (!start.factors.empty() || !grid.q_offset.is_constant() || !grid.kv_offset.is_constant())
        return false;
    const BorrowPlace place{start.constant, grid.q_offset.constant, grid.kv_offset.constant};
    if (!is_step(place.width) || !is_step(place.q_offset) || !is_step(place.kv_offset))
        return false;
    if (std::ranges::find(places, place) == places.end()) places.push_back(place);
    return places.size() <= kMostPlaces;
}

// The grid of a read that is of one for all elements.
const Grid* grid_of(const Mod& mod, const ReadGradient& gradient) {
    const CapturedRead* read = captured_read(mod, gradient.read);
    const bool has_factor =
        is_gradient_of_score(mod, gradient) || gradient.sum_factor != ir::kNoNode;
    if (!has_factor || read->read_class != ReadClass::grid_distance || !read->is_whole()) return {};
    return &read->pieces[0].grid;
}

// How many tokens there are at least if the read meets all of its slice, where its text says so.
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
    std::vector<BorrowPlace> places;
    for (const ReadGradient& gradient : mod.gradients) {
        if (!gradient.is_of_table) continue;
        const Grid* grid = grid_of(mod, gradient);
        if (grid == nullptr) return;
        for (const Grid::Axis& axis : grid->axes)
            if (!add_place(places, *grid, axis.start) ||
                (axis.end && !add_place(places, *grid, *axis.end)))
                return;
    }
    if (places.empty() || has_few_tokens(mod)) return;
    mod.borrow_places = std::move(places);
    for (ReadGradient& gradient : mod.gradients)
        gradient.is_of_grid = gradient.is_of_table;
}

} // namespace flexc::passes
