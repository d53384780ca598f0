// Orders of tiles of keys: every tile of a range once, as all threads count them.
#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <vector>

#include <doctest/doctest.h>

#include "sm90/key_order.h"

namespace {

template <typename Order> std::vector<int> visited(int begin, int end) {
    std::vector<int> tiles;
    Order order(begin, end);
    for (int next = end - 1; next >= begin; --next) {
        tiles.push_back(order.tile(next));
        const int following = order.after(next);
        order.advance();
        if (next > begin) CHECK(order.tile(next - 1) == following);
    }
    return tiles;
}

} // namespace

TEST_CASE("orders of keys visit each tile of a range once, the last first") {
    CHECK(visited<sm90::Descending>(3, 6) == std::vector{5, 4, 3});
    CHECK(visited<sm90::Interleaved>(3, 3).empty());
    CHECK(visited<sm90::Interleaved>(3, 6) == std::vector{5, 4, 3});
    CHECK(visited<sm90::Interleaved>(2, 12) == std::vector{11, 8, 5, 2, 10, 7, 4, 9, 6, 3});
    for (int count = 1; count < 70; ++count) {
        const std::vector<int> tiles = visited<sm90::Interleaved>(5, 5 + count);
        CHECK(tiles.front() == 4 + count);
        std::vector<bool> seen(static_cast<std::size_t>(count));
        for (const int tile : tiles) {
            REQUIRE(tile >= 5);
            REQUIRE(tile < 5 + count);
            CHECK_FALSE(seen[static_cast<std::size_t>(tile - 5)]);
            seen[static_cast<std::size_t>(tile - 5)] = true;
        }
        // Neighbours have two others between them at least.
        for (std::size_t i = 0; count > 8 && i < tiles.size(); ++i)
            for (std::size_t j = i + 1; j < std::min(i + 3, tiles.size()); ++j)
                CHECK(std::abs(tiles[i] - tiles[j]) > 1);
    }
}
