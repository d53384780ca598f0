// Chooses a plan's exchange: the one that was asked for, or one by the memory that gathered keys
// take and the number of launches.
#pragma once

#include <string>

#include "distributed/state.h"
#include "distributed/visible_map.h"

namespace flexc::distributed {

struct ExchangeChoice {
    Exchange exchange = Exchange::ring; // never automatic
    int pieces = 1;                     // of the heads of keys, that all_gather has in turn
    std::string explanation;            // a line
};

ExchangeChoice choose_exchange(const detail::DistributedPlanState& plan, const VisibleMap& map,
                               const DistributedOptions& options);

} // namespace flexc::distributed
