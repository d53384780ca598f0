// The order of tiles of keys that sm90/key_walk.cuh chooses, run on the host: each tile once, from
// where a slope or a function of the distance adds most.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "host_arguments.h"
#include "host_module.h"
#include "ir/interp.h"
#include "passes/decompose.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"
#include "sm90/arguments.h"

namespace {

using namespace flexc;

constexpr int kKeys = 1000, kQueries = 900;

// Of the tile of queries from first_row on: its number of tiles of keys, and these in their order.
using Function = int(const std::uint64_t* words, const sm90::KernelArguments*, int head,
                     int first_row, int* tiles);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/tabulate_distances.cuh"
#include "sm90/key_addend.cuh"
#include "sm90/key_walk.cuh"
#include "common/tile_range.cuh"
using namespace sm90;
extern "C" int count_tabulated(const sm90::KernelArguments* attention) {
    using Vectors = mod::TabulatedVectors;
    return vector_heads(*attention) * Vectors::kByDistance * Vectors::kDistanceCopies *
           kEntryFloats * distance_count(*attention);
}
extern "C" void tabulate(const unsigned long long* words, const sm90::KernelArguments* attention) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    if constexpr (mod::TabulatedVectors::kByDistance > 0)
        for (int block = 0;
             block < vector_heads(*attention) * (distance_count(*attention) / kTabulatedStep);
             ++block)
            for (threadIdx.x = 0; threadIdx.x < kTabulatedStep; ++threadIdx.x)
                tabulate_distances(*attention, arguments, block, DistanceUnits{attention->scale});
}
extern "C" int walk(const unsigned long long* words, const sm90::KernelArguments* attention,
                    int head, int first_row, int* tiles) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    const SequenceLength length(*attention, place.b);
    const int end_row = min(first_row + mod::kQueryTile, length.queries());
    const TileRange range = visible_tiles(place, length, first_row, end_row - 1, mod::kKeyTile);
    KeyWalk walk(*attention, arguments,
                 {place.b, place.h, place.h_kv, first_row, range.begin, range.end, place.low,
                  place.high, end_row});
    const int count = range.end - range.begin;
    for (int i = 0; i < count; ++i, walk.advance()) tiles[i] = walk.tile();
    return count;
}
)";

enum class Start { first, last, diagonal };

// That the walk of every tile of queries starts there. sign: of the buffer's one number.
void check(const std::string& text, double sign, Start start) {
    CAPTURE(text);
    CAPTURE(sign);
    auto mod = test::lower_text("buffer s: f32[1]\n" + text, 64, 64, false);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    const passes::DecomposedMod decomposed = passes::decompose_score(*mod);
    REQUIRE(passes::adds_by_position(decomposed.mod, decomposed.parts));
    const plan::KernelConfig config =
        plan::candidates({.arch = 90,
                          .dtype = DType::bf16,
                          .has_score_mod = true,
                          .terms = {.plain = {.tabulated = passes::tabulated_values(decomposed),
                                              .adds_by_position = true}}})
            .front();
    REQUIRE(plan::sm90::forward_of(config)->starts_at_highest);
    const test::HostModule module(std::string(kText),
                                  test::emitted(*mod, config, {.dtype = DType::bf16}));
    sm90::KernelArguments attention{};
    attention.batch = attention.heads = attention.kv_heads = 1;
    attention.q_len = kQueries;
    attention.kv_len = kKeys;
    ir::Environment at;
    at.sizes = {1, 1, 1, kQueries, kKeys, 64, 64};
    ir::BufferData number;
    number.reals = {sign};
    number.extents = {1};
    at.buffers = {&number};
    const test::HostArguments arguments(decomposed.mod, at);
    std::vector<float> values(static_cast<std::size_t>(
        module.function<int(const sm90::KernelArguments*)>("count_tabulated")(&attention)));
    attention.distance_values = values.data();
    module.function<void(const std::uint64_t*, const sm90::KernelArguments*)>("tabulate")(
        arguments.words(), &attention);
    for (int row = 0; row < kQueries; row += config.block.query_tile) {
        CAPTURE(row);
        std::vector<int> tiles(kKeys);
        const int count =
            module.function<Function>("walk")(arguments.words(), &attention, 0, row, tiles.data());
        REQUIRE(count > 0);
        tiles.resize(static_cast<std::size_t>(count));
        const int last_row = std::min(row + config.block.query_tile, kQueries) - 1;
        const auto [least, most] = std::ranges::minmax(tiles);
        CHECK(tiles.front() == (start == Start::first  ? least
                                : start == Start::last ? most
                                                       : last_row / config.block.key_tile));
        if (start == Start::first) CHECK(std::ranges::is_sorted(tiles));
        if (start == Start::last) CHECK(std::ranges::is_sorted(tiles, std::greater()));
        std::ranges::sort(tiles);
        for (int i = 0; i < count; ++i)
            CHECK(tiles[static_cast<std::size_t>(i)] == least + i);
    }
}

} // namespace

TEST_CASE("tiles of keys come from where most is added") {
    const std::string causal = "mask_mod = q_idx >= kv_idx\n";
    for (const std::string& mask : {std::string(), causal}) {
        check(mask + "score_mod = score + s[0] * (kv_idx - q_idx)", 0.25, Start::last);
        check(mask + "score_mod = score + s[0] * (kv_idx - q_idx)", -0.25, Start::first);
    }
    const std::string near = "score_mod = score - s[0] * log(1 + abs(q_idx - kv_idx))";
    check(causal + near, 2, Start::last);
    check(causal + near, -2, Start::first);
    check(near, 2, Start::diagonal);
    check("mask_mod = q_idx >= kv_idx and q_idx - kv_idx < 300\n" + near, -2, Start::first);
}

TEST_CASE("what is added by position alone") {
    const auto adds = [](const std::string& score) {
        const auto mod = test::lower_text(
            "buffer s: f32[H]\nbuffer t: f32[H, N]\nscore_mod = " + score, 64, 64, false);
        REQUIRE(mod.has_value());
        const passes::DecomposedMod decomposed = passes::decompose_score(*mod);
        return passes::adds_by_position(decomposed.mod, decomposed.parts);
    };
    for (const char* score :
         {"score + s[h] * (kv_idx - q_idx)", "score * s[h] + t[h, q_idx - kv_idx + 99]",
          "score + s[h] * log(1 + abs(q_idx - kv_idx))",
          "score + s[h] * (kv_idx - q_idx) + t[h, kv_idx]"}) {
        CAPTURE(score);
        CHECK(adds(score));
    }
    for (const char* score :
         {"score", "score * s[h]", "score + t[h, kv_idx]", "score + t[h, q_idx] * kv_idx",
          "3 * tanh(score + s[h] * kv_idx)", "score + s[h] * kv_idx + t[h, q_idx * kv_idx]"}) {
        CAPTURE(score);
        CHECK(!adds(score));
    }
}
