#include "passes/hoist.h"

#include <array>

namespace flexc::passes {

using analysis::Dependence;

std::string_view name(Place place) {
    constexpr std::array<std::string_view, 5> kNames = {"launch", "head", "row", "column",
                                                        "element"};
    return kNames[static_cast<std::size_t>(place)];
}

Place place_of(Dependence dependence) {
    const bool row = dependence.has(Dependence::q), column = dependence.has(Dependence::kv);
    if (dependence.has(Dependence::score) || (row && column)) return Place::element;
    if (row) return Place::row;
    if (column) return Place::column;
    return dependence == Dependence{} ? Place::launch : Place::head;
}

std::vector<Place> hoist(const std::vector<Dependence>& dependence,
                         const std::vector<ir::NodeId>& counters) {
    std::vector<Place> places;
    places.reserve(dependence.size());
    for (std::size_t id = 0; id < dependence.size(); ++id)
        places.push_back(counters[id] == ir::kNoNode ? place_of(dependence[id]) : Place::element);
    return places;
}

} // namespace flexc::passes
