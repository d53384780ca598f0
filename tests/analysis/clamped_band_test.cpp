#include <doctest/doctest.h>

#include "analysis/band.h"
#include "ir/print.h"
#include "masks.h"
#include "random_program.h"

using namespace flexc;
using ir::NodeId;

namespace {

// What the band says of one element, by its definition.
bool shows(const passes::Mod& mod, const ir::Environment& at) {
    constexpr std::int64_t kFar = std::int64_t{1} << 60;
    const analysis::Clamps& clamps = *mod.band.clamps;
    const auto value = [&](NodeId node, std::int64_t none) {
        return node == ir::kNoNode ? none : ir::evaluate_integer(mod.program, node, at);
    };
    const auto shift = [&](const std::vector<NodeId>& nodes, std::int64_t none) {
        return nodes.empty() ? none : at.q_idx + value(nodes[0], 0);
    };
    const std::int64_t first =
        std::min(value(clamps.first_most, kFar),
                 std::max(value(clamps.first_least, -kFar), shift(mod.band.low, -kFar)));
    const std::int64_t last =
        std::min(value(clamps.last_most, kFar),
                 std::max(value(clamps.last_least, -kFar), shift(mod.band.high, kFar)));
    return first <= at.kv_idx && at.kv_idx <= last &&
           at.q_idx >= value(clamps.least_query, -kFar) &&
           at.q_idx <= value(clamps.most_query, kFar);
}

void check(const test::MaskCase& one) {
    CAPTURE(one.text);
    test::MaskInstance mask(one, {83, 97}, true);
    REQUIRE(mask.mod().band.clamps);
    CHECK(mask.mod().mask_tier == analysis::MaskTier::closed_form);
    for (std::int64_t b = 0; b < 2; ++b) {
        const ir::Environment& environment = mask.move(b, b);
        for (std::int64_t q = 0; q < 83; ++q)
            for (std::int64_t kv = 0; kv < 97; ++kv) {
                const bool visible = mask.visible(q, kv); // moves the environment there
                REQUIRE(shows(mask.mod(), environment) == visible);
            }
    }
}

// Comparisons of positions with each other and with numbers, joined at random.
std::string random_mask(test::Random& random, int depth) {
    if (depth > 0 && !random.chance(25)) {
        const std::string operation = random.chance(55) ? " and " : " or ";
        return "(" + random_mask(random, depth - 1) + operation + random_mask(random, depth - 1) +
               ")";
    }
    const std::string key =
        random.pick(std::array<std::string, 3>{"kv_idx", "kv_idx", "2 * kv_idx"});
    const std::string number =
        random.pick(std::array<std::string, 4>{"n", "lens[b] * 7", "11", "-2"});
    const std::string other = random.pick(std::array<std::string, 4>{
        "q_idx", "q_idx + " + number, "min(q_idx, " + number + ")", number});
    const std::string compared =
        random.pick(std::array<std::string, 4>{" < ", " <= ", " >= ", " > "});
    return (random.chance(15) ? "q_idx" : key) + compared + other;
}

} // namespace

TEST_CASE("prefixes and padding are bands with clamps") {
    for (const test::MaskCase& one : test::clamped_cases())
        check(one);
}

TEST_CASE("masks of which a query may see two ranges of keys are none") {
    for (const char* text :
         {"(q_idx - kv_idx <= 10 or kv_idx < 4) and q_idx >= kv_idx", "kv_idx < 16 or kv_idx >= 48",
          "q_idx >= kv_idx and b % 2 == 0", "q_idx < 9 or kv_idx < 9", "kv_idx != 4",
          "q_idx + kv_idx < 50", "2 * q_idx >= kv_idx", "q_idx // 8 >= kv_idx // 8",
          "max(q_idx, 9) >= kv_idx and min(q_idx - 9, 30) >= kv_idx"}) {
        CAPTURE(text);
        const passes::Mod mod = test::lowered("mask_mod = " + std::string(text),
                                              {.backward = false, .clamps_bands = true});
        CHECK_FALSE(mod.band.clamps);
    }
}

TEST_CASE("a band that needs no clamps stays one, and a constant has none") {
    for (const char* text : {"q_idx >= kv_idx", "abs(q_idx - kv_idx) < 7", "true", "false"}) {
        const passes::Mod mod = test::lowered("mask_mod = " + std::string(text),
                                              {.backward = false, .clamps_bands = true});
        CHECK_FALSE(mod.band.clamps);
    }
}

TEST_CASE("clamped bands of random masks show what the masks show") {
    constexpr int kMasks = 400;
    int found = 0;
    for (const std::uint64_t seed : test::seeds(kMasks)) {
        CAPTURE(seed);
        test::Random random(seed);
        const std::string text =
            "param n: int = 6\nbuffer lens: i32[B]\nmask_mod = " + random_mask(random, 3);
        CAPTURE(text);
        test::MaskInstance mask({text, analysis::MaskTier::closed_form}, {23, 31}, true);
        if (!mask.mod().band.clamps) continue;
        ++found;
        for (std::int64_t b = 0; b < 2; ++b) {
            const ir::Environment& environment = mask.move(b, b);
            for (std::int64_t q = 0; q < 23; ++q)
                for (std::int64_t kv = 0; kv < 31; ++kv) {
                    const bool visible = mask.visible(q, kv);
                    REQUIRE(shows(mask.mod(), environment) == visible);
                }
        }
    }
    CHECK(found > test::trials(kMasks) / 20);
}
