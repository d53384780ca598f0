#include <doctest/doctest.h>

#include <limits>

#include "analysis/tile_class.h"
#include "masks.h"
#include "random_program.h"

using namespace flexc;
using analysis::TileClass;
using analysis::TiledAxis;

namespace {

struct Axes {
    TiledAxis queries, keys;
};

TileClass by_definition(test::MaskInstance& mask, const Axes& layout, std::int64_t query_tile,
                        std::int64_t key_tile) {
    bool visible = false, hidden = false;
    const auto& [queries, keys] = layout;
    for (std::int64_t q = queries.begin(query_tile); q < queries.end(query_tile); ++q)
        for (std::int64_t kv = keys.begin(key_tile); kv < keys.end(key_tile); ++kv)
            (mask.visible(q + queries.offset, kv + keys.offset) ? visible : hidden) = true;
    return !visible ? TileClass::empty : hidden ? TileClass::partial : TileClass::full;
}

struct Tally {
    int tiles = 0, tested = 0;
};

Tally check(const test::MaskCase& one, const Axes& layout) {
    const auto& [queries, keys] = layout;
    test::MaskInstance mask(one, {queries.offset + queries.length, keys.offset + keys.length});
    Tally tally;
    for (std::int64_t b = 0; b < 2; ++b) {
        const analysis::TileClassifier tiles(mask.mod().program, mask.mod().mask, mask.move(b, b),
                                             queries, keys);
        for (std::int64_t q = 0; q < queries.tiles(); ++q)
            for (std::int64_t kv = 0; kv < keys.tiles(); ++kv) {
                CAPTURE(q);
                CAPTURE(kv);
                const TileClass truth = by_definition(mask, layout, q, kv);
                CHECK(tiles.classify(q, kv) == truth);
                const auto tested = tiles.test(q, kv);
                if (tested) CHECK(*tested == truth);
                ++tally.tiles;
                tally.tested += tested.has_value();
            }
    }
    return tally;
}

} // namespace

TEST_CASE("the least integer has no positive counterpart") {
    const interval::Fact least = interval::of(std::numeric_limits<long long>::min());
    CHECK(interval::iabs(least).low <= -0x1p63);
    CHECK(interval::ineg(least).low <= -0x1p63);
}

TEST_CASE("tiles are what their elements are") {
    for (const test::MaskCase& one : test::mask_cases()) {
        CAPTURE(one.text);
        check(one, {{61, 0, 16}, {83, 0, 16}});
        check(one, {{37, 23, 16}, {50, 9, 8}});
        check(one, {{1, 40, 16}, {83, 0, 32}});
    }
}

TEST_CASE("each mask needs no more work than its tier says") {
    for (const test::MaskCase& one : test::mask_cases()) {
        CAPTURE(one.text);
        const passes::Mod mod = test::lowered(one.text);
        CHECK(analysis::tier_of(mod.program.graph, mod.mask, mod.band) == one.tier);
    }
}

TEST_CASE("intervals alone tell most tiles of sorted documents") {
    const test::MaskCase documents{
        "buffer doc: i32[N]\nmask_mod = doc[q_idx] == doc[kv_idx] and q_idx >= kv_idx",
        analysis::MaskTier::tile_tests,
        {{"doc", [](std::int64_t i) { return i / 64; }}}};
    const Tally tally = check(documents, {{256, 0, 16}, {256, 0, 16}});
    // What is left are the tiles on the diagonal.
    CHECK(tally.tiles - tally.tested == 2 * 16);
}

TEST_CASE("intervals of random masks hold what their elements give") {
    constexpr int kMasks = 400;
    int tested = 0;
    for (const std::uint64_t seed : test::seeds(kMasks)) {
        CAPTURE(seed);
        const ir::Program program = test::random_program(seed, {.gradients = false});
        test::Instance instance(program, seed);
        ir::Environment& environment = instance.environment();
        const Axes layout{{7, 2, 3}, {8, 1, 3}};
        const analysis::TileClassifier tiles(program, program.mask, environment, layout.queries,
                                             layout.keys);
        for (std::int64_t q = 0; q < layout.queries.tiles(); ++q)
            for (std::int64_t kv = 0; kv < layout.keys.tiles(); ++kv) {
                const auto found = tiles.test(q, kv);
                if (!found || *found == TileClass::partial) continue;
                ++tested;
                for (std::int64_t i = layout.queries.begin(q); i < layout.queries.end(q); ++i)
                    for (std::int64_t j = layout.keys.begin(kv); j < layout.keys.end(kv); ++j) {
                        environment.q_idx = i + layout.queries.offset;
                        environment.kv_idx = j + layout.keys.offset;
                        REQUIRE(ir::evaluate_boolean(program, program.mask, environment) ==
                                (*found == TileClass::full));
                    }
            }
    }
    CHECK(tested > test::trials(kMasks));
}
