#include <algorithm>
#include <random>
#include <vector>

#include <doctest/doctest.h>

#include "common/block_order.h"
#include "draws.h"
#include "fresh_seed.h"

TEST_CASE("blocks of keys: every tile of every head has one, and those of a head rise") {
    std::mt19937 random(flexc::test::fresh_seed());
    const auto below = flexc::test::draws_below(random);
    for (int round = 0; round < 500; ++round) {
        const int tiles = 1 + below(70), heads = 1 + below(70);
        const BlockOrder order{tiles, heads, (1ll << (10 + below(22))) + below(1000), below(tiles)};
        CAPTURE(tiles);
        CAPTURE(heads);
        CAPTURE(order.head_bytes);
        CAPTURE(order.short_tiles);
        std::vector<int> next(static_cast<std::size_t>(heads));
        for (int block = 0; block < tiles * heads; ++block) {
            const HeadTile found = tile_of_block(order, block);
            REQUIRE(found.head >= 0);
            REQUIRE(found.head < heads);
            REQUIRE(found.tile == next[static_cast<std::size_t>(found.head)]++);
        }
        CHECK(std::ranges::count(next, tiles) == heads);
    }
}

TEST_CASE("blocks of keys: short tiles of all heads come last") {
    constexpr BlockOrder kTwoShort{.tiles = 6, .heads = 5, .head_bytes = 1 << 20, .short_tiles = 2};
    for (int block = 0; block < kTwoShort.tiles * kTwoShort.heads; ++block)
        CHECK((tile_of_block(kTwoShort, block).tile >= 4) == (block >= 20));
}

TEST_CASE("blocks of keys: the heads that remain go with the last group") {
    constexpr BlockOrder kThirds{
        .tiles = 128, .heads = 8, .head_bytes = (32 << 20) / 3, .short_tiles = 0};
    std::vector<int> heads;
    heads.reserve(static_cast<std::size_t>(kThirds.tiles) * kThirds.heads);
    for (int block = 0; block < kThirds.tiles * kThirds.heads; ++block)
        heads.push_back(tile_of_block(kThirds, block).head);
    // Three by three, tile by tile; then five.
    CHECK(std::vector(heads.begin(), heads.begin() + 6) == std::vector{0, 1, 2, 0, 1, 2});
    CHECK(std::vector(heads.begin() + 3 * kThirds.tiles, heads.begin() + 3 * kThirds.tiles + 6) ==
          std::vector{3, 4, 5, 6, 7, 3});
}

TEST_CASE("blocks of keys: heads of few tiles go together, so that a group fills the GPU") {
    constexpr BlockOrder kFewTiles{
        .tiles = 32, .heads = 8, .head_bytes = 64 << 20, .short_tiles = 0};
    for (int block = 0; block < kFewTiles.tiles * kFewTiles.heads; ++block)
        CHECK(tile_of_block(kFewTiles, block).head / 4 == block / 128);
}
