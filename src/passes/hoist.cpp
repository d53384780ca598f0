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

std::vector<Place> hoist(const std::vector<Dependence>& dependence) {
    std::vector<Place> places;
    for (Dependence of_node : dependence)
        places.push_back(place_of(of_node));
    return places;
}

} // namespace flexc::passes
