// What a plan knows in advance of its messages and its work, as numbers and as text.
#pragma once

#include <cstdint>
#include <string_view>

#include "distributed/schedule.h"
#include "distributed/state.h"
#include "distributed/visible_map.h"

namespace flexc::distributed {

// Bytes of a key for some heads, including its rows of sharded buffers.
enum class Way : std::uint8_t { out, home }; // keys and values, or their gradients in f32
std::uint64_t bytes_per_key(const detail::DistributedPlanState& plan, std::int64_t kv_heads,
                            Way way);

void count_area(detail::DistributedPlanState& plan, const VisibleMap& map);
// peers: the ranks between which steps exchange.
void count_steps(detail::DistributedPlanState& plan, const Schedule& schedule,
                 std::string_view peers);
void count_ulysses(detail::DistributedPlanState& plan);
void describe_rank(detail::DistributedPlanState& plan);

} // namespace flexc::distributed
