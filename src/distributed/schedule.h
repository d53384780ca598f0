// The schedule: which rank computes which piece of the score matrix in which step, and what is sent
// for it. It follows from the shards and a map of what is visible, so every rank computes the same
// one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "distributed/visible_map.h"
#include "flexc/distributed.h"

namespace flexc::distributed {

// One launch of the kernel.
struct Piece {
    RowRange queries, keys;
};

// Runs of one rank's keys, in order, that another rank needs; each lies inside one of the owner's
// ranges.
struct Share {
    int peer = 0;
    std::vector<RowRange> runs;
};

struct Step {
    std::vector<Share> arrivals;   // from whom; of the rank itself: nothing travels
    std::vector<Share> departures; // to whom, for the same step of theirs
    std::vector<Piece> pieces;     // that the arrivals are for
    bool travels = false;          // something between some ranks: the same on all of them
};

// All ranks have equally many steps; some may be empty. A gather has a step for queries that see
// only their own rank's keys, which needs no messages, if there are any, and one for all others.
struct RankSchedule {
    std::vector<Step> steps;
};

inline constexpr std::size_t kStepsOfGather = 2;

class Schedule {
  public:
    // exchange must not be `automatic`.
    Schedule(const Shards& queries, const Shards& keys, const VisibleMap& map, Exchange exchange);

    int ranks() const { return static_cast<int>(ranks_.size()); }
    const RankSchedule& of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
    // Number of keys that a rank receives, and sends.
    std::int64_t received_rows(int rank) const;
    std::int64_t sent_rows(int rank) const;

  private:
    std::vector<RankSchedule> ranks_;
};

// Speed of a machine, for estimating a schedule.
struct Machine {
    double elements_per_second = 0; // of the score matrix, of all heads, on one rank
    double bytes_per_second = 0;    // into a rank
    double seconds_per_message = 0;
};
// Estimated efficiency, relative to one rank's speed per visible element: 1 if nothing is lost to
// waiting and imbalance. The next step's exchange overlaps with computing. bytes_per_key: of all
// heads.
double modelled_efficiency(const Schedule& schedule, const VisibleMap& map, double heads,
                           double bytes_per_key, const Machine& machine);

// Gives each rank equally many rows and visible elements: by contiguous or zigzag shards where
// these are even, otherwise by chunks.
Shards balanced(const VisibleMap& map, int ranks);

} // namespace flexc::distributed
