// Divides work on requests: by lengths alone, so that results do not depend on threads; if they
// must not depend on the batch either, by each request's own length. The plan lists the work, and
// the loops do it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "common/sequences.h"

namespace flexc::cpu {

// Rows that are one product with keys, and how many such blocks share what is loaded of keys.
inline constexpr int kBlockRows = 64, kWorkBlocks = 4;
// Keys are divided where there are fewer pieces than this, into parts of at least so many keys.
inline constexpr int kEnoughWork = 64, kLeastKeys = 256;
// The same for each request by itself, if results must not depend on the others.
inline constexpr int kEnoughOwnWork = 16;
constexpr std::int64_t most_parts(std::int64_t requests, bool batch_invariant) {
    return batch_invariant ? std::int64_t{2} * kEnoughOwnWork * requests
                           : std::int64_t{2} * kEnoughWork;
}

// If the heads that share keys have no more rows than this, a piece has up to so many such groups:
// KV heads are often adjacent in memory and are then read together.
inline constexpr int kFewRows = 8, kFewRowGroups = 8;
inline constexpr int kMostBlocks = std::max(kWorkBlocks, kFewRowGroups); // of a piece

// How many heads that share keys put their rows into one block.
constexpr int heads_in_block(int queries) {
    return queries < kBlockRows ? kBlockRows / queries : 1;
}
// Dense launches with so few queries are computed as requests: packing all keys would take longer
// than reading them once.
inline constexpr int kFewQueries = 16;

constexpr bool may_split(std::int64_t keys) { return keys >= std::int64_t{2} * kLeastKeys; }

// groups: the most groups of heads in a piece.
std::vector<SequenceWork> list_work(std::span<const Sequence> sequences, int heads, int kv_heads,
                                    bool batch_invariant, int groups = kFewRowGroups);

} // namespace flexc::cpu
