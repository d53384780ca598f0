// All-to-all of heads: each rank gets all queries and keys of some heads, computes these like one
// rank alone, and sends home what belongs to others' rows.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "flexc/distributed.h"

namespace flexc::detail {
struct DistributedPlanState;
}

namespace flexc::distributed {

// Heads that one launch computes: whole groups of them, or part of one.
struct HeadBlock {
    RowRange heads, kv_heads;
    friend bool operator==(const HeadBlock&, const HeadBlock&) = default;
};

// Heads of a rank, and what it needs of the heads of keys; ranks share the latter where a group is
// cut.
struct HeadShare {
    RowRange heads, kv_heads;
    std::vector<HeadBlock> blocks;
};
HeadShare head_share(std::int64_t heads, std::int64_t kv_heads, int ranks, int rank);

struct Ulysses {
    Kernel kernel;                 // of a part of the heads
    std::vector<HeadShare> shares; // of each rank
    std::vector<Plan> plans;       // of this rank's blocks
    std::size_t workspace_bytes = 0;
};

// Fills plan.ulysses and plan.traffic.
Result<void> plan_ulysses(detail::DistributedPlanState& plan, std::span<const NamedTensor> buffers,
                          const DistributedOptions& options);

Result<void> forward_ulysses(const detail::DistributedPlanState& plan,
                             const ForwardTensors& tensors, std::span<const NamedTensor> buffers);
// Adds to the f32 sums of buffers' gradients.
Result<void> backward_ulysses(const detail::DistributedPlanState& plan,
                              const BackwardTensors& tensors, std::span<const NamedTensor> buffers,
                              std::span<const NamedTensor> sums);

} // namespace flexc::distributed
