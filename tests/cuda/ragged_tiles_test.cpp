// Which tiles of ragged queries Hopper's forward computes, run on the host: all that requests with
// many queries have, each once.
#include <algorithm>
#include <map>
#include <random>
#include <tuple>
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "cuda/emitted.h"
#include "front/compile_text.h"
#include "host_module.h"
#include "passes/pipeline.h"
#include "plan/plan.h"

namespace {

using namespace flexc;

constexpr std::string_view kText = R"(
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

passes::Mod ragged_mod() {
    front::Output output =
        front::compile_text({.source = dsl::Source("<test>", "mask_mod = q_idx >= kv_idx"),
                             .query_layout = Layout::ragged,
                             .key_layout = Layout::ragged});
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    auto mod = passes::lower(std::move(*output.program), {});
    REQUIRE(mod.has_value());
    return std::move(*mod);
}

} // namespace

TEST_CASE("tiles of ragged queries are all that requests with many have, each once") {
    const plan::KernelConfig config = plan::candidates({.arch = 90}).front();
    REQUIRE(config.specialized);
    const test::HostModule module(std::string(kText), test::emitted(ragged_mod(), config));
    auto* const count = module.function<int(const AttentionArguments*)>("count");
    auto* const find = module.function<bool(const AttentionArguments*, int, int*)>("find");
    const std::uint32_t seed = std::random_device()();
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int end) { return static_cast<int>(random() % unsigned(end)); };
    for (int round = 0; round < 300; ++round) {
        const int group = 1 << below(3);
        std::vector<Sequence> sequences(static_cast<std::size_t>(1 + below(20)));
        long long rows = 0;
        for (Sequence& one : sequences) {
            one = {.q_row = rows, .q_rows = below(3) == 0 ? below(4) : below(700)};
            one.q_len = below(4) == 0 ? below(one.q_rows + 1) : one.q_rows;
            rows += one.q_rows;
        }
        AttentionArguments attention{};
        attention.batch = static_cast<int>(sequences.size());
        attention.kv_heads = 1 + below(3);
        attention.heads = attention.kv_heads * group;
        attention.kv_len = below(2) * (1 << below(20));
        attention.q_rows = rows + below(2) * below(300);
        attention.sequences.sequences = sequences.data();
        attention.sequences.count = attention.batch;

        using Place = std::tuple<int, int, int>; // head over all, first and end row
        std::map<Place, int> expected, got;
        for (int b = 0; b < attention.batch; ++b) {
            const Sequence& one = sequences[static_cast<std::size_t>(b)];
            if (has_few_rows(one, group)) continue;
            for (int h = 0; h < attention.heads; ++h)
                for (int row = 0; row < one.q_rows; row += config.query_tile)
                    ++expected[{b * attention.heads + h, row,
                                std::min(row + config.query_tile, one.q_rows)}];
        }
        for (int index = 0; index < count(&attention); ++index)
            if (int tile[3]; find(&attention, index, tile)) ++got[{tile[0], tile[1], tile[2]}];
        REQUIRE(got == expected);
    }
}
