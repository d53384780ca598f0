// Masks whose visible elements lie in a band of diagonals: causal, sliding windows, their shifts;
// and those where a band's ends are clamped: prefixes, padding, and bands with these.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "ir/program.h"

namespace flexc::analysis {

// Bounds in addition to those of a band, integer nodes too; kNoNode for none. Query q sees the keys
// from min(first_most, max(first_least, q + low)) to min(last_most, max(last_least, q + high)) if
// least_query <= q <= most_query, and otherwise nothing.
struct Clamps {
    ir::NodeId first_least = ir::kNoNode, first_most = ir::kNoNode;
    ir::NodeId last_least = ir::kNoNode, last_most = ir::kNoNode;
    ir::NodeId least_query = ir::kNoNode, most_query = ir::kNoNode;

    // All bounds, in the order of declaration.
    std::array<ir::NodeId*, 6> nodes() {
        return {&first_least, &first_most, &last_least, &last_most, &least_query, &most_query};
    }
    std::array<ir::NodeId, 6> nodes() const {
        return {first_least, first_most, last_least, last_most, least_query, most_query};
    }
};

// Every visible element has kv_idx - q_idx <= each of `high` and >= each of `low`; the bounds are
// integer nodes that use neither q, kv nor score. Bounds are built into the graph when needed.
struct Band {
    std::vector<ir::NodeId> low, high;
    bool exact = false; // the mask says nothing else
    // Conjuncts of the mask that these bounds express completely.
    std::vector<ir::NodeId> said;
    // With clamps the band is exact, and its own bounds need not hold for every visible element.
    std::optional<Clamps> clamps;
    bool found() const { return !low.empty() || !high.empty() || clamps; }
};

Band band_of(ir::Graph& graph, ir::NodeId mask);
// Returns the band of a mask that is a band with clamps and nothing else.
std::optional<Band> clamped_band_of(ir::Graph& graph, ir::NodeId mask);

} // namespace flexc::analysis
