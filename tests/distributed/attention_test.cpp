// Many ranks against one, forward and backward, by the definition in double.
#include <doctest/doctest.h>

#include <random>
#include <string>
#include <vector>

#include "cpu_options.h"
#include "distributed/problem.h"

using namespace flexc;
using namespace flexc::test;

namespace {

const std::pair<const char*, std::string> kMasks[] = {
    {"none", ""},
    {"causal", "mask_mod = q_idx >= kv_idx"},
    {"window", "mask_mod = 0 <= q_idx - kv_idx < 25"},
    {"documents", "buffer doc: i32[KV_LEN]\nmask_mod = doc[q_idx] == doc[kv_idx]"},
    {"prefix", "buffer lens: i32[B]\nmask_mod = kv_idx < lens[b] or q_idx >= kv_idx"},
    {"exhaustive", "mask_mod = (q_idx * 31 + kv_idx * 17) % 5 == 0"},
};

const std::pair<const char*, std::string> kMods[] = {
    {"no mod", "score_mod = score"},
    {"learned ALiBi",
     "buffer slopes: f32[H] grad\nscore_mod = score + slopes[h] * (kv_idx - q_idx) * 0.1"},
    {"T5 table", "buffer table: f32[32, H] grad\n"
                 "score_mod = score + table[clamp(q_idx - kv_idx + 16, 0, 31), h]"},
    {"key bias", "buffer keys: f32[H, KV_LEN] grad\nscore_mod = score + keys[h, kv_idx]"},
    {"dense bias",
     "buffer bias: f32[H, Q_LEN, KV_LEN] grad\nscore_mod = score + bias[h, q_idx, kv_idx]"},
    {"row gate", "buffer gate: f32[Q_LEN] grad\nscore_mod = score * (1 + gate[q_idx])"},
};

DistributedCase case_of(const std::string& mod, const std::string& mask) {
    DistributedCase one{.text = mod + "\n" + mask};
    one.integers["doc"] = [](std::int64_t i) { return i / 23; };
    one.integers["lens"] = [](std::int64_t) { return 31; };
    return one;
}

struct Layout {
    const char* name;
    Shards queries, keys;
};

// Uneven and empty shares too.
std::vector<Layout> layouts(std::int64_t q_len, std::int64_t kv_len, int ranks) {
    std::vector<Layout> all = {
        {"contiguous", *Shards::contiguous(q_len, ranks), *Shards::contiguous(kv_len, ranks)},
        {"zigzag", *Shards::zigzag(q_len, ranks), *Shards::zigzag(kv_len, ranks)}};
    // The first rank has no keys and the last no queries; rows are out of order.
    std::vector<std::vector<RowRange>> queries(static_cast<std::size_t>(ranks)),
        keys(static_cast<std::size_t>(ranks));
    const auto last = static_cast<std::size_t>(ranks - 1);
    queries[0] = {{q_len / 2, q_len}, {0, q_len / 3}};
    queries[last > 1 ? 1 : 0].push_back({q_len / 3, q_len / 2});
    keys[last] = {{kv_len - 7, kv_len}, {0, kv_len / 2}};
    keys[last > 1 ? 1 : last].push_back({kv_len / 2, kv_len - 7});
    all.push_back({"uneven", *Shards::of(q_len, queries), *Shards::of(kv_len, keys)});
    return all;
}

void check_layouts(const DistributedProblem& problem, std::initializer_list<int> rank_counts,
                   const RunOptions& options = {}) {
    const Outcome one = problem.on_one_rank(options.o_type);
    for (const int ranks : rank_counts)
        for (const Layout& layout : layouts(problem.what().q_len, problem.what().kv_len, ranks))
            for (const Exchange exchange : {Exchange::ring, Exchange::all_gather}) {
                CAPTURE(ranks);
                CAPTURE(layout.name);
                CAPTURE(name(exchange));
                RunOptions own = options;
                own.exchange = exchange;
                const std::string differences =
                    compare(problem, problem.on_ranks(layout.queries, layout.keys, own), one);
                CHECK_MESSAGE(differences.empty(), differences);
            }
}

std::uint32_t fresh_seed() {
    const std::uint32_t seed = std::random_device{}();
    MESSAGE("seed " << seed);
    return seed;
}

} // namespace

TEST_CASE("every mask with every mod, in every exchange, forward and backward") {
    if (!has_cpu()) return;
    const std::uint32_t seed = fresh_seed();
    for (const auto& [mask_name, mask] : kMasks)
        for (const auto& [mod_name, mod] : kMods) {
            CAPTURE(mask_name);
            CAPTURE(mod_name);
            check_layouts(DistributedProblem(case_of(mod, mask), seed), {2, 3});
        }
}
