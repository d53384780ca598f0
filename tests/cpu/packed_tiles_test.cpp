// Packed tiles that several threads need.
#include <doctest/doctest.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "cpu/backend/packed_tiles.h"

TEST_CASE("packed tiles are packed once, and are the same for all threads") {
    // Here: in one file with others, some of these names mean something else.
    using flexc::support::Arena, flexc::cpu::Magnitude, flexc::cpu::PackedTile,
        flexc::cpu::PackedTiles;
    constexpr std::int64_t kTiles = 50, kBeyond = 60, kFloats = 96;
    constexpr int kThreads = 4, kRounds = 20;
    Arena size(nullptr);
    PackedTiles(size, kTiles, kFloats);
    const std::unique_ptr<void, decltype(&std::free)> memory(std::aligned_alloc(64, size.used()),
                                                             &std::free);
    Arena arena(memory.get());
    const PackedTiles tiles(arena, kTiles, kFloats);
    for (int round = 0; round < kRounds; ++round) {
        tiles.clear();
        std::atomic<int> wrong{0};
        std::vector<std::atomic<int>> packed(kTiles);
        const auto value_of = [&](std::int64_t tile) { return static_cast<float>(tile + round); };
        const auto magnitude_of_tile = [](std::int64_t tile) {
            return Magnitude{.is_finite = tile % 2 == 0, .is_moderate = tile % 3 == 0};
        };
        {
            std::vector<std::jthread> threads;
            for (int i = 0; i < kThreads; ++i)
                threads.emplace_back([&] {
                    std::vector<float> own(kFloats);
                    for (std::int64_t number = -1; number < kBeyond; ++number) {
                        const PackedTile tile = tiles.find(number, own.data(), [&](float* to) {
                            if (to != own.data()) ++packed[static_cast<std::size_t>(number)];
                            for (std::int64_t at = 0; at < kFloats; ++at)
                                to[at] = value_of(number);
                            return magnitude_of_tile(number);
                        });
                        if ((number < 0 || number >= kTiles) && tile.data != own.data()) ++wrong;
                        for (std::int64_t at = 0; at < kFloats; ++at)
                            if (tile.data[at] != value_of(number)) ++wrong;
                        const Magnitude expected = magnitude_of_tile(number);
                        if (tile.magnitude.is_finite != expected.is_finite ||
                            tile.magnitude.is_moderate != expected.is_moderate)
                            ++wrong;
                    }
                });
        }
        CHECK(wrong == 0);
        for (const std::atomic<int>& times : packed)
            CHECK(times == 1);
    }
}
