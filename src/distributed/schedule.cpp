#include "distributed/schedule.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <utility>

namespace flexc::distributed {

namespace {

// Returns the runs of `owner`'s keys that the queries need.
std::vector<RowRange> needed(std::span<const RowRange> queries, const Shards& keys,
                             const VisibleMap& map, int owner) {
    std::vector<RowRange> needed;
    for (const RowRange& range : keys.ranges(owner)) {
        const auto runs = map.visible_keys(queries, range);
        needed.insert(needed.end(), runs.begin(), runs.end());
    }
    return needed;
}

// Pairs each range of queries with the runs that it sees. A piece may include keys that nobody
// sees, which the kernel skips, but not keys that are absent.
std::vector<Piece> pieces_of(std::span<const RowRange> queries, std::span<const RowRange> runs,
                             const VisibleMap& map) {
    std::vector<Piece> pieces;
    for (const RowRange& range : queries)
        for (const RowRange& run : runs) {
            const auto seen = map.visible_keys(std::span(&range, 1), run);
            if (seen.empty()) continue;
            const RowRange keys{seen.front().begin, seen.back().end};
            pieces.push_back({map.visible_queries(range, keys), keys});
        }
    return pieces;
}

// Joins adjacent ranges.
std::vector<RowRange> joined(std::vector<RowRange> ranges) {
    std::ranges::sort(ranges, {}, &RowRange::begin);
    std::vector<RowRange> joined;
    for (const RowRange& range : ranges) {
        if (!joined.empty() && joined.back().end == range.begin)
            joined.back().end = range.end;
        else
            joined.push_back(range);
    }
    return joined;
}

std::vector<RowRange> joined_runs(std::span<const Share> shares) {
    std::vector<RowRange> runs;
    for (const Share& share : shares)
        runs.insert(runs.end(), share.runs.begin(), share.runs.end());
    return joined(std::move(runs));
}

std::int64_t rows_of(std::span<const Share> shares, int but) {
    std::int64_t rows = 0;
    for (const Share& share : shares)
        if (share.peer != but)
            for (const RowRange& run : share.runs)
                rows += run.count();
    return rows;
}

} // namespace

Schedule::Schedule(const Shards& queries, const Shards& keys, const VisibleMap& map,
                   Exchange exchange)
    : ranks_(static_cast<std::size_t>(queries.ranks())) {
    const int count = queries.ranks();
    const bool in_turn = exchange == Exchange::ring;
    for (RankSchedule& schedule : ranks_)
        schedule.steps.resize(in_turn ? ranks_.size() : kStepsOfGather);
    const auto add = [&](int rank, int owner, std::size_t at, std::span<const RowRange> rows) {
        std::vector<RowRange> runs = needed(rows, keys, map, owner);
        if (runs.empty()) return;
        const auto step_of = [&](int who) -> Step& {
            return ranks_[static_cast<std::size_t>(who)].steps[at];
        };
        if (rank != owner) step_of(owner).departures.push_back({rank, runs});
        step_of(rank).arrivals.push_back({owner, std::move(runs)});
    };
    for (int rank = 0; rank < count; ++rank) {
        const std::span<const RowRange> rows = queries.ranges(rank);
        RankSchedule& schedule = ranks_[static_cast<std::size_t>(rank)];
        if (in_turn) {
            // In a ring, each rank receives from another one in each step.
            for (int owner = 0; owner < count; ++owner)
                add(rank, owner, static_cast<std::size_t>((rank - owner + count) % count), rows);
            for (Step& step : schedule.steps)
                step.pieces = pieces_of(rows, joined_runs(step.arrivals), map);
            continue;
        }
        std::array<std::vector<RowRange>, kStepsOfGather> of_steps;
        for (const RowRange& range : rows) {
            bool waits = false;
            for (int owner = 0; owner < count && !waits; ++owner)
                waits = owner != rank && !needed(std::span(&range, 1), keys, map, owner).empty();
            of_steps[waits ? 1 : 0].push_back(range);
        }
        for (std::size_t at = 0; at < kStepsOfGather; ++at) {
            for (int owner = 0; owner < count; ++owner)
                add(rank, owner, at, of_steps[at]);
            schedule.steps[at].pieces =
                pieces_of(of_steps[at], joined_runs(schedule.steps[at].arrivals), map);
        }
    }
    const bool is_first_empty = std::ranges::all_of(ranks_, [](const RankSchedule& schedule) {
        return schedule.steps.front().arrivals.empty();
    });
    if (!in_turn && is_first_empty)
        for (RankSchedule& schedule : ranks_)
            schedule.steps.erase(schedule.steps.begin());
    for (std::size_t at = 0; at < ranks_.front().steps.size(); ++at) {
        const bool travels = std::ranges::any_of(ranks_, [&](const RankSchedule& schedule) {
            return !schedule.steps[at].departures.empty();
        });
        for (RankSchedule& schedule : ranks_)
            schedule.steps[at].travels = travels;
    }
}

std::int64_t Schedule::received_rows(int rank) const {
    std::int64_t rows = 0;
    for (const Step& step : of(rank).steps)
        rows += rows_of(step.arrivals, rank);
    return rows;
}

std::int64_t Schedule::sent_rows(int rank) const {
    std::int64_t rows = 0;
    for (const Step& step : of(rank).steps)
        rows += rows_of(step.departures, rank);
    return rows;
}

double modelled_efficiency(const Schedule& schedule, const VisibleMap& map, double heads,
                           double bytes_per_key, const Machine& machine) {
    double all = 0, slowest = 0;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        double ready = 0, free = 0; // when a step's keys are there, and when the rank is
        for (const Step& step : schedule.of(rank).steps) {
            double messages = 0, area = 0;
            for (const Share& share : step.arrivals)
                messages += share.peer != rank ? 1 : 0;
            for (const Piece& piece : step.pieces)
                area += map.area(piece.queries, piece.keys);
            ready += static_cast<double>(rows_of(step.arrivals, rank)) * bytes_per_key /
                         machine.bytes_per_second +
                     messages * machine.seconds_per_message;
            const double seconds = heads * area / machine.elements_per_second;
            free = std::max(free, ready) + seconds;
            all += seconds;
        }
        slowest = std::max(slowest, free);
    }
    return slowest == 0 ? 1 : all / schedule.ranks() / slowest;
}

namespace {

// Returns whether no rank has much more to compute than a fair share.
bool is_even(const VisibleMap& map, const Shards& shards) {
    constexpr double kMost = 1.05;
    double most = 0, all = 0;
    for (int rank = 0; rank < shards.ranks(); ++rank) {
        double area = 0;
        for (const RowRange& range : shards.ranges(rank))
            area += map.area(range, {0, map.keys().length});
        most = std::max(most, area);
        all += area;
    }
    return most * shards.ranks() <= kMost * all;
}

} // namespace

Shards balanced(const VisibleMap& map, int ranks) {
    // Few ranges take few launches and let less travel.
    for (const auto dealt : {&Shards::contiguous, &Shards::zigzag})
        if (Shards shards = *dealt(map.queries().length, ranks); is_even(map, shards))
            return shards;
    // Enough chunks for the largest to be small compared with a rank's share, but none smaller than
    // a tile of the map or of a kernel.
    constexpr std::int64_t kChunksOfRank = 16, kKernelRows = 128;
    const analysis::TiledAxis axis = map.queries();
    const analysis::TiledAxis smallest{axis.length, 0, std::min(map.tile(), kKernelRows)};
    const std::int64_t per_rank =
        std::clamp<std::int64_t>(smallest.tiles() / ranks, 1, kChunksOfRank);
    const std::int64_t chunks = per_rank * ranks;
    struct Chunk {
        RowRange rows;
        double area = 0;
    };
    std::vector<Chunk> order;
    for (std::int64_t i = 0; i < chunks; ++i) {
        const RowRange rows{axis.length * i / chunks, axis.length * (i + 1) / chunks};
        order.push_back({rows, map.area(rows, {0, map.keys().length})});
    }
    std::ranges::stable_sort(order, std::greater(), &Chunk::area);
    // Gives each chunk to the rank with the least area that has room; to the first of equal ones.
    using Hand = std::pair<double, std::size_t>; // area, rank
    std::priority_queue<Hand, std::vector<Hand>, std::greater<>> hands;
    std::vector<std::vector<RowRange>> ranges(static_cast<std::size_t>(ranks));
    for (std::size_t rank = 0; rank < ranges.size(); ++rank)
        hands.push({0, rank});
    for (const Chunk& chunk : order) {
        const auto [area, rank] = hands.top();
        hands.pop();
        ranges[rank].push_back(chunk.rows);
        if (static_cast<std::int64_t>(ranges[rank].size()) < per_rank)
            hands.push({area + chunk.area, rank});
    }
    for (std::vector<RowRange>& of_rank : ranges)
        of_rank = joined(std::move(of_rank));
    return *Shards::of(axis.length, std::move(ranges));
}

} // namespace flexc::distributed
