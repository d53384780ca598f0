#include "distributed/exchange_choice.h"

#include <algorithm>
#include <cstdint>

#include "distributed/schedule.h"
#include "distributed/traffic.h"
#include "support/text.h"

namespace flexc::distributed {

namespace {

// Number of launches of the rank that has most.
std::int64_t most_launches(const Schedule& schedule) {
    std::size_t most = 0;
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        std::size_t own = 0;
        for (const Step& step : schedule.of(rank).steps)
            own += step.pieces.size();
        most = std::max(most, own);
    }
    return static_cast<std::int64_t>(most);
}

} // namespace

ExchangeChoice choose_exchange(const detail::DistributedPlanState& plan, const VisibleMap& map,
                               const DistributedOptions& options) {
    ExchangeChoice choice{.exchange = options.exchange, .explanation = {}};
    const bool is_free = choice.exchange == Exchange::automatic;
    if (!is_free && choice.exchange != Exchange::all_gather) {
        choice.explanation = formatted("exchange: {}, as asked for\n", name(choice.exchange));
        return choice;
    }
    const DistributedSizes& sizes = plan.sizes;
    const Schedule gathered(sizes.queries, sizes.keys, map, Exchange::all_gather);
    std::int64_t most = 0;
    for (int rank = 0; rank < gathered.ranks(); ++rank)
        most = std::max(most, gathered.received_rows(rank));
    // Bytes of the largest piece; twice that for several pieces, as the next is received meanwhile.
    const auto bytes_of = [&](int pieces) {
        const std::int64_t heads = (sizes.kv_heads + pieces - 1) / pieces;
        return static_cast<std::uint64_t>(most) * bytes_per_key(plan, heads, Way::out) *
               (pieces > 1 ? 2 : 1);
    };
    const std::uint64_t limit = options.gathered_bytes;
    while (bytes_of(choice.pieces) > limit && choice.pieces < sizes.kv_heads)
        ++choice.pieces;
    const bool fits = bytes_of(choice.pieces) <= limit;
    choice.exchange = Exchange::all_gather;
    std::string reason;
    if (is_free && !fits) {
        choice.exchange = Exchange::ring;
        reason = formatted("more than {}", limit);
    } else if (is_free && choice.pieces > 1) {
        const Schedule ring(sizes.queries, sizes.keys, map, Exchange::ring);
        const std::int64_t launches = most_launches(gathered) * choice.pieces;
        const std::int64_t in_ring = most_launches(ring);
        if (launches > in_ring) choice.exchange = Exchange::ring;
        reason = formatted("no more than {}, and {} launches beside {} of a ring", limit, launches,
                           in_ring);
    } else {
        reason = formatted("{} than {}", fits ? "no more" : "more", limit);
    }
    choice.explanation = formatted(
        "exchange: {}, {}gathered keys and values take {} bytes on a rank{}, {}\n",
        name(choice.exchange), is_free ? "because " : "as asked for; ", bytes_of(choice.pieces),
        choice.pieces == 1 ? "" : formatted(" in {} pieces of heads", choice.pieces), reason);
    if (choice.exchange == Exchange::ring) choice.pieces = 1;
    return choice;
}

} // namespace flexc::distributed
