// What ranks are tested with: masks, score mods, shards and timings, against one rank.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "distributed/problem.h"
#include "fresh_seed.h"

namespace flexc::test {

using NamedText = std::pair<std::string, std::string>;
extern const std::vector<NamedText> kMasks, kMods;
struct ShardedText {
    std::string text;
    std::vector<ShardedBuffer> sharded;
};
extern const std::vector<ShardedText> kShardedPrograms;

// With what their buffers hold.
DistributedCase case_of(const std::string& mod, const std::string& mask);

struct Sharding {
    std::string name;
    Shards queries, keys;
};
// Uneven and empty shares too.
std::vector<Sharding> shardings(std::int64_t q_len, std::int64_t kv_len, int ranks);

// A sink of a head beside one of each of its rows: what the first learns is the sum over rows of
// what the others do, as far as f32 sums are.
inline constexpr const char* kSinkOfHeadAndRow =
    "buffer s: f32[H] grad\nbuffer t: f32[H, Q_LEN] grad\nsink = s[h] + t[h, q_idx]";
void check_sums_of_sinks(const DistributedProblem& problem, int ranks);

// All exchanges with all of these shards.
void check_shardings(const DistributedProblem& problem, std::initializer_list<int> rank_counts,
                     const RunOptions& options = {});

// The same results from runs whose ranks wait now and then, so that they meet in other orders.
void check_same_bits(const DistributedProblem& problem, const Shards& shards, RunOptions options,
                     std::uint32_t runs);

} // namespace flexc::test
