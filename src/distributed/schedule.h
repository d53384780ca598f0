// Who computes which piece of the score matrix in which step, and what travels for it. A value,
// made from shards and a map of what is visible: every rank makes the same one.
#pragma once

#include <cstdint>
#include <vector>

#include "distributed/visible_map.h"
#include "flexc/distributed.h"

namespace flexc::distributed {

// One launch of the kernel.
struct Piece {
    RowRange queries, keys;
};

// Runs of keys of one rank, in order, that one other needs; each inside one of the owner's ranges.
struct Share {
    int peer = 0;
    std::vector<RowRange> runs;
};

struct Step {
    std::vector<Share> arrivals;   // from whom; of the rank itself: nothing travels
    std::vector<Share> departures; // to whom, for the same step of theirs
    std::vector<Piece> pieces;     // that the arrivals are for
};

// All ranks have as many steps; there may be nothing to do in one.
struct RankSchedule {
    std::vector<Step> steps;
};

class Schedule {
  public:
    // exchange is not automatic.
    Schedule(const Shards& queries, const Shards& keys, const VisibleMap& map, Exchange exchange);

    int ranks() const { return static_cast<int>(ranks_.size()); }
    const RankSchedule& of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
    // Keys that travel to a rank, or from it.
    std::int64_t received_rows(int rank) const;
    std::int64_t sent_rows(int rank) const;

  private:
    std::vector<RankSchedule> ranks_;
};

// What a machine would need, for a look at a schedule before there is one.
struct Machine {
    double elements_per_second = 0; // of the score matrix, of all heads, on one rank
    double bytes_per_second = 0;    // into a rank
    double seconds_per_message = 0;
};
// Of one rank's speed per visible element: 1 where nothing is lost to waiting and imbalance.
// Exchanges of the next step go on while a step is computed. bytes_per_key: of all heads.
double modelled_efficiency(const Schedule& schedule, const VisibleMap& map, double heads,
                           double bytes_per_key, const Machine& machine);

// Chunks of a sequence dealt so that each rank has as many, and as much to compute.
Shards balanced(const VisibleMap& map, int ranks);

} // namespace flexc::distributed
