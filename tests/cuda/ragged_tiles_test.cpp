// Which tiles of ragged queries Hopper's forward computes, and which of ragged keys its backward,
// run on the host: all that there are, each once.
#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "cuda/emitted.h"
#include "draws.h"
#include "fresh_seed.h"
#include "front/compile_text.h"
#include "host_module.h"
#include "passes/pipeline.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"

namespace {

using namespace flexc;

constexpr std::string_view kForward = R"(
#include "mod.cuh"
#include "sm90/tile_scheduler.cuh"
extern "C" int count(const AttentionArguments* attention) {
    return sm90::TileScheduler(*attention).tiles();
}
extern "C" bool find(const AttentionArguments* attention, int index, int* tile) {
    const sm90::Tile found = sm90::TileScheduler(*attention).tile(index);
    tile[0] = found.head, tile[1] = found.first_row, tile[2] = found.end_row;
    return found.exists();
}
)";

constexpr std::string_view kBackward = R"(
#include "mod.cuh"
#include "sm90/backward_key_order.cuh"
unsigned char shared_memory[1];
extern "C" int count(const AttentionArguments* attention) {
    return sm90::KeyTileOrder::count(*attention);
}
extern "C" bool find(const AttentionArguments* attention, int index, int* tile) {
    const mod::Arguments arguments{};
    const sm90::KeyTile found = sm90::KeyTileOrder::tile(*attention, arguments, index);
    if (found.is_none()) return false;
    tile[0] = found.head(*attention), tile[1] = found.first_row(*attention);
    tile[2] = found.end_row(*attention);
    return true;
}
)";

// What decides which tiles there are.
struct Requests {
    std::vector<Sequence> sequences;
    AttentionArguments attention{};
    int group = 1;
};
Requests random_requests(std::mt19937& random) {
    const auto below = test::draws_below(random);
    Requests requests;
    requests.group = 1 << below(3);
    requests.sequences.resize(static_cast<std::size_t>(1 + below(20)));
    const auto rows_of_one = [&] { return below(3) == 0 ? below(4) : below(700); };
    const auto used_of = [&](int rows) { return below(4) == 0 ? below(rows + 1) : rows; };
    long long q_rows = 0, kv_rows = 0;
    for (Sequence& one : requests.sequences) {
        one = {.q_row = q_rows, .kv_row = kv_rows, .q_rows = rows_of_one()};
        one.kv_rows = rows_of_one();
        one.q_len = used_of(one.q_rows);
        one.kv_len = used_of(one.kv_rows);
        q_rows += one.q_rows;
        kv_rows += one.kv_rows;
    }
    AttentionArguments& attention = requests.attention;
    attention.batch = static_cast<int>(requests.sequences.size());
    attention.kv_heads = 1 + below(3);
    attention.heads = attention.kv_heads * requests.group;
    attention.q_len = below(2) * (1 << below(20));
    attention.kv_len = below(2) * (1 << below(20));
    attention.q_rows = q_rows + below(2) * below(300);
    attention.kv_rows = kv_rows + below(2) * below(300);
    attention.sequences.sequences = requests.sequences.data();
    attention.sequences.count = attention.batch;
    return requests;
}

passes::Mod ragged_mod(bool backward) {
    front::Output output =
        front::compile_text({.source = dsl::Source("<test>", "mask_mod = q_idx >= kv_idx"),
                             .query_layout = Layout::ragged,
                             .key_layout = Layout::ragged});
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    auto mod = passes::lower(std::move(*output.program), {.backward = backward});
    REQUIRE(mod.has_value());
    return std::move(*mod);
}

using Place = std::tuple<int, int, int>; // head over all, first and end row
std::map<Place, int> tiles_of(const test::HostModule& module, const AttentionArguments& attention) {
    auto* const count = module.function<int(const AttentionArguments*)>("count");
    auto* const find = module.function<bool(const AttentionArguments*, int, int*)>("find");
    std::map<Place, int> tiles;
    for (int index = 0; index < count(&attention); ++index)
        if (int tile[3]; find(&attention, index, tile)) ++tiles[{tile[0], tile[1], tile[2]}];
    return tiles;
}

} // namespace

TEST_CASE("tiles of ragged queries are all that requests with many have, each once") {
    const plan::KernelConfig config = plan::candidates({.arch = 90}).front();
    REQUIRE(plan::sm90::forward_of(config) != nullptr);
    const test::HostModule module(std::string(kForward), test::emitted(ragged_mod(false), config));
    std::mt19937 random(test::fresh_seed());
    for (int round = 0; round < 300; ++round) {
        const Requests requests = random_requests(random);
        const AttentionArguments& attention = requests.attention;
        std::map<Place, int> expected;
        for (int b = 0; b < attention.batch; ++b) {
            const Sequence& one = requests.sequences[static_cast<std::size_t>(b)];
            if (has_few_rows(one, requests.group)) continue;
            for (int h = 0; h < attention.heads; ++h)
                for (int row = 0; row < one.q_rows; row += config.block.query_tile)
                    ++expected[{b * attention.heads + h, row,
                                std::min(row + config.block.query_tile, one.q_rows)}];
        }
        REQUIRE(tiles_of(module, attention) == expected);
    }
}

TEST_CASE("tiles of ragged keys are all that there are, each once") {
    const plan::KernelConfig config = plan::candidates({.kind = plan::KernelKind::backward_fused,
                                                        .arch = 90,
                                                        .sequences = {.is_ragged = true}})
                                          .front();
    REQUIRE(config.block.is_persistent);
    const test::HostModule module(std::string(kBackward), test::emitted(ragged_mod(true), config));
    std::mt19937 random(test::fresh_seed());
    for (int round = 0; round < 300; ++round) {
        const Requests requests = random_requests(random);
        const AttentionArguments& attention = requests.attention;
        std::map<Place, int> expected;
        for (int b = 0; b < attention.batch; ++b) {
            const Sequence& one = requests.sequences[static_cast<std::size_t>(b)];
            const int first = static_cast<int>(one.kv_row), end = first + one.kv_rows;
            for (int h = 0; h < attention.kv_heads; ++h)
                for (int row = first; row < end; row += config.block.key_tile)
                    ++expected[{b * attention.kv_heads + h, row, end}];
        }
        REQUIRE(tiles_of(module, attention) == expected);
    }
}
