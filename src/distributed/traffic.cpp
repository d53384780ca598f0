#include "distributed/traffic.h"

#include <cstddef>
#include <vector>

#include "support/text.h"

namespace flexc::distributed {

using detail::DistributedPlanState;

std::uint64_t bytes_per_key(const DistributedPlanState& plan, std::int64_t kv_heads, Way way) {
    const CompileOptions& options = plan.kernel->kernel.options();
    std::uint64_t bytes = static_cast<std::uint64_t>(plan.sizes.batch * kv_heads *
                                                     (options.head_dim + options.head_dim_v)) *
                          size_of(way == Way::out ? options.dtype : DType::f32);
    for (const Sharded& sharded : plan.sharded) {
        if (sharded.is_query || (way == Way::home && !sharded.grad)) continue;
        bytes += static_cast<std::uint64_t>(sharded.view(nullptr, DType::f32, 1).elements()) *
                 size_of(way == Way::out ? sharded.dtype : DType::f32);
    }
    return bytes;
}

void count_area(DistributedPlanState& plan, const VisibleMap& map) {
    const int own = plan.communicator->rank();
    Traffic& traffic = plan.traffic;
    const int ranks = plan.communicator->ranks();
    for (int rank = 0; rank < ranks; ++rank)
        for (const RowRange& range : plan.sizes.queries.ranges(rank)) {
            const double area = map.area(range, {0, plan.sizes.keys.length()});
            traffic.fair_area += area / ranks;
            // With ulysses, the area of the whole node, whose ranks share it by heads.
            const int together = plan.ulysses ? plan.ulysses->ranks_per_node : 1;
            if (rank / together == own / together) traffic.visible_area += area;
        }
    if (plan.ulysses)
        traffic.visible_area *= static_cast<double>(plan.ulysses->own_share().heads.count()) /
                                static_cast<double>(plan.sizes.heads);
}

// Inside a node rows are sent to the ranks with their heads, and across nodes keys are; results and
// gradients are sent back in f32.
void count_ulysses(DistributedPlanState& plan) {
    const int rank = plan.communicator->rank();
    const Ulysses& ulysses = *plan.ulysses;
    const CompileOptions& options = plan.kernel->kernel.options();
    const auto element = static_cast<std::int64_t>(size_of(options.dtype));
    constexpr std::int64_t kFloat = sizeof(float);
    const std::int64_t d = options.head_dim, dv = options.head_dim_v;
    struct Volume {
        std::int64_t out, back, backward_out, backward_back;
    };
    // Bytes for the rows of one rank and the heads of another.
    const auto between = [&](int rows_of, int heads_of) {
        const HeadShare& share =
            ulysses.shares[static_cast<std::size_t>(heads_of % ulysses.ranks_per_node)];
        const std::int64_t q =
            plan.sizes.batch * plan.sizes.queries.rows(rows_of) * share.heads.count();
        const std::int64_t k =
            plan.sizes.batch * plan.sizes.keys.rows(rows_of) * share.kv_heads.count();
        return Volume{q * d * element + k * (d + dv) * element, q * (dv + 1) * kFloat,
                      q * (d + dv) * element + q * (dv + 2) * kFloat + k * (d + dv) * element,
                      q * d * kFloat + k * (d + dv) * kFloat};
    };
    Traffic& traffic = plan.traffic;
    const int first = rank - ulysses.node->rank();
    for (int peer = first; peer < first + ulysses.ranks_per_node; ++peer) {
        if (peer == rank) continue;
        const Volume mine = between(rank, peer), theirs = between(peer, rank);
        traffic.forward_sent += static_cast<std::uint64_t>(mine.out + theirs.back);
        traffic.forward_received += static_cast<std::uint64_t>(theirs.out + mine.back);
        traffic.backward_sent +=
            static_cast<std::uint64_t>(mine.backward_out + theirs.backward_back);
        traffic.backward_received +=
            static_cast<std::uint64_t>(theirs.backward_out + mine.backward_back);
        for (const Sharded& sharded : plan.sharded) {
            const Shards& shards = sharded.is_query ? plan.sizes.queries : plan.sizes.keys;
            const auto own = static_cast<std::uint64_t>(shards.rows(rank)),
                       other = static_cast<std::uint64_t>(shards.rows(peer));
            const auto elements =
                static_cast<std::uint64_t>(sharded.view(nullptr, DType::f32, 1).elements());
            const std::uint64_t row = elements * size_of(sharded.dtype),
                                sums = sharded.grad ? elements * sizeof(float) : 0;
            traffic.forward_sent += own * row;
            traffic.forward_received += other * row;
            traffic.backward_sent += own * row + other * sums;
            traffic.backward_received += other * row + own * sums;
        }
    }
    for (const auto& block : ulysses.blocks) {
        traffic.forward_sent += block->traffic.forward_sent;
        traffic.forward_received += block->traffic.forward_received;
        traffic.backward_sent += block->traffic.backward_sent;
        traffic.backward_received += block->traffic.backward_received;
        traffic.pieces += block->traffic.pieces;
    }
    const RowRange& heads = ulysses.own_share().heads;
    plan.explanation +=
        formatted("rank {}: heads {} to {} in {} launches; forward sends {} and receives {} bytes, "
                  "backward {} and {}\n",
                  rank, heads.begin, heads.end, traffic.pieces, traffic.forward_sent,
                  traffic.forward_received, traffic.backward_sent, traffic.backward_received);
}

void count_steps(DistributedPlanState& plan, const Schedule& schedule, std::string_view peers) {
    const int rank = plan.communicator->rank();
    Traffic& traffic = plan.traffic;
    const std::size_t steps = schedule.of(rank).steps.size(); // of each piece of heads
    const std::size_t pieces = plan.piece_kernel ? plan.steps.size() / steps : 1;
    std::uint64_t narrow = 0, wide = 0;
    for (std::size_t piece = 0; piece < pieces; ++piece) {
        const std::int64_t heads =
            pieces == 1 ? plan.sizes.kv_heads : plan.steps[piece * steps].heads.kv_heads.count();
        narrow += bytes_per_key(plan, heads, Way::out);
        wide += bytes_per_key(plan, heads, Way::home);
    }
    const auto sent = static_cast<std::uint64_t>(schedule.sent_rows(rank));
    const auto received = static_cast<std::uint64_t>(schedule.received_rows(rank));
    traffic.forward_sent = sent * narrow;
    traffic.forward_received = received * narrow;
    traffic.backward_sent = sent * narrow + received * wide;
    traffic.backward_received = received * narrow + sent * wide;
    for (std::size_t i = 0; i < plan.steps.size(); ++i) {
        const auto launches = plan.steps[i].launches.size();
        traffic.pieces += static_cast<std::int64_t>(launches);
        std::int64_t keys = 0;
        std::vector<int> senders;
        for (const Share& share : plan.schedule.steps[i].arrivals) {
            senders.push_back(share.peer);
            for (const RowRange& run : share.runs)
                keys += run.count();
        }
        const RowRange& heads = plan.steps[i].heads.kv_heads;
        plan.explanation += formatted(
            "step {}: {} keys of {} [{}]{}, {} launches\n", i, keys, peers,
            flexc::joined(senders, ", "),
            pieces == 1 ? "" : formatted(", heads {} to {} of them", heads.begin, heads.end),
            launches);
    }
}

void describe_rank(DistributedPlanState& plan) {
    const Traffic& traffic = plan.traffic;
    plan.explanation += formatted(
        "rank {}: {:.0f} visible elements of each head, {:.3f} of a fair share; forward sends "
        "{} and receives {} bytes, backward {} and {}\n",
        plan.communicator->rank(), traffic.visible_area,
        traffic.fair_area == 0 ? 1.0 : traffic.visible_area / traffic.fair_area,
        traffic.forward_sent, traffic.forward_received, traffic.backward_sent,
        traffic.backward_received);
}

} // namespace flexc::distributed
