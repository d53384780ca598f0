// What requests with few queries need of launches, as far as the host knows their lengths.
#pragma once

#include <cstdint>
#include <span>

#include "common/sequences.h"

namespace flexc::plan {

struct FewWork {
    std::int64_t parts = 0;          // of keys, for each head of keys
    std::int64_t merging_blocks = 0; // for each request and head: as many as one of them needs
    bool has_others = false;         // requests with more queries
};

// parts: of all requests, whose records say where theirs begin. group: heads of queries for each of
// kv_heads. most_queries: the most that a request of the plan may have.
FewWork few_work(std::span<const Sequence> sequences, int parts, int group, int kv_heads,
                 std::int64_t most_queries);

} // namespace flexc::plan
