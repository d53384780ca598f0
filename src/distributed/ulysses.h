// All-to-all of heads inside nodes (Ulysses): each rank receives some heads of all rows of its
// node, computes them in a ring with the ranks that have the same heads on other nodes, and sends
// back results for other ranks' rows.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "flexc/distributed.h"

namespace flexc::detail {
struct DistributedPlanState;
}

namespace flexc::distributed {

// Heads that one launch computes: whole groups, or a part of one.
struct HeadBlock {
    RowRange heads, kv_heads;
    friend bool operator==(const HeadBlock&, const HeadBlock&) = default;
};

// Heads of a rank, and the KV heads that it needs; if a group is divided, ranks share these.
struct HeadShare {
    RowRange heads, kv_heads;
    std::vector<HeadBlock> blocks;
};
HeadShare head_share(std::int64_t heads, std::int64_t kv_heads, int ranks, int rank);

// Node n has ranks_per_node ranks, from n * ranks_per_node on.
struct Ulysses {
    int ranks_per_node = 0;
    Shards queries, keys; // of nodes: each has its ranges in the order of positions
    // The ranks of this rank's node, and the ranks with the same heads, one on each node.
    std::shared_ptr<Communicator> node, same_heads;
    std::vector<HeadShare> shares; // of each rank of a node
    // For each of this rank's blocks of heads, a plan of same_heads.
    std::vector<std::shared_ptr<const detail::DistributedPlanState>> blocks;

    const HeadShare& own_share() const { return shares[static_cast<std::size_t>(node->rank())]; }
};

// Returns the groups and shares, without the plans of the blocks.
Ulysses ulysses_of(const DistributedSizes& sizes, const std::shared_ptr<Communicator>& communicator,
                   int ranks_per_node);

Result<void> forward_ulysses(const detail::DistributedPlanState& plan,
                             const ForwardTensors& tensors, std::span<const NamedTensor> buffers);
// Adds to the f32 sums of buffers' gradients.
Result<void> backward_ulysses(const detail::DistributedPlanState& plan,
                              const BackwardTensors& tensors, std::span<const NamedTensor> buffers,
                              std::span<const NamedTensor> sums);

} // namespace flexc::distributed
