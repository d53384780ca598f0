#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "common/dq_order.h"
#include "draws.h"
#include "fresh_seed.h"

namespace {

struct Shape {
    int q_len, kv_len, query_tile, key_tile;
    int low, high; // of kv - q
};

// Tiles of queries from begin to end that a block of keys visits, as the kernels find them.
std::pair<int, int> visited(const Shape& s, int key_tile) {
    const int first_kv = key_tile * s.key_tile;
    const int last_kv = std::min(first_kv + s.key_tile, s.kv_len) - 1;
    const int first = std::max(first_kv - s.high, 0);
    const int last = std::min(last_kv - s.low, s.q_len - 1);
    if (first > last) return {0, 0};
    return {first / s.query_tile, last / s.query_tile + 1};
}

// Blocks of one head that start in order, as many as are resident, and visit tiles from the last
// to the first. Which of them goes on is chance. Returns who added to each tile, or nothing when
// everyone waits.
std::vector<std::vector<int>> run(const Shape& s, int resident, std::mt19937& random) {
    const int blocks = (s.kv_len + s.key_tile - 1) / s.key_tile;
    std::vector<std::vector<int>> added((s.q_len + s.query_tile - 1) / s.query_tile);
    struct Block {
        int key_tile, next, end; // tiles that are left: [end, next]
    };
    std::vector<Block> running;
    int started = 0;
    while (started < blocks || !running.empty()) {
        while (started < blocks && static_cast<int>(running.size()) < resident) {
            const auto [begin, end] = visited(s, started);
            running.push_back({started++, end - 1, begin});
        }
        std::ranges::shuffle(running, random);
        const auto able = std::ranges::find_if(running, [&](const Block& one) {
            return one.next < one.end ||
                   static_cast<int>(added[one.next].size()) ==
                       earlier_key_tiles(one.key_tile, s.key_tile, one.next * s.query_tile, s.low);
        });
        if (able == running.end()) return {};
        if (able->next < able->end)
            running.erase(able);
        else
            added[able->next--].push_back(able->key_tile);
    }
    return added;
}

} // namespace

TEST_CASE("blocks of keys take their turns in order, and nobody waits for ever") {
    std::mt19937 random(flexc::test::fresh_seed());
    const auto below = flexc::test::draws_below(random);
    constexpr int kAny = 1 << 30;
    for (int round = 0; round < 4000; ++round) {
        Shape s{1 + below(900), 1 + below(900), below(2) == 0 ? 64 : 128, 128, -kAny, kAny};
        if (below(3) > 0) s.low = below(1200) - 900;
        if (below(3) > 0) s.high = below(1200) - 300;
        CAPTURE(s.q_len);
        CAPTURE(s.kv_len);
        CAPTURE(s.query_tile);
        CAPTURE(s.low);
        CAPTURE(s.high);
        const auto added = run(s, 1 + below(6), random);
        REQUIRE(!added.empty());
        for (std::size_t tile = 0; tile < added.size(); ++tile) {
            std::vector<int> expected;
            for (int key_tile = 0; key_tile * s.key_tile < s.kv_len; ++key_tile) {
                const auto [begin, end] = visited(s, key_tile);
                const int here = static_cast<int>(tile);
                if (begin <= here && here < end) expected.push_back(key_tile);
            }
            CHECK(added[tile] == expected);
        }
    }
}
