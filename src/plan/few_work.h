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

// Sizes of dense tensors.
struct DenseSizes {
    std::int64_t batch, heads, kv_heads, queries, keys;
};
// Returns the work of a call whose batch entries all have few queries: parts by these sizes alone.
FewWork few_work(const DenseSizes& sizes);
// Returns whether all rows of queries that share keys fit into one block.
bool has_few_rows(const DenseSizes& sizes);
// Estimates whether the kernels of few queries are faster for a call with few rows than the one for
// any number. visible_keys: that a row may see.
bool are_few_faster(const DenseSizes& sizes, std::int64_t visible_keys);

} // namespace flexc::plan
