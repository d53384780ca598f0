// The tile tests that block_mask.cu calls, run on the host, against the same of src/analysis.
#include <vector>

#include <doctest/doctest.h>

#include "cuda/emitted.h"
#include "host_arguments.h"
#include "host_module.h"
#include "masks.h"
#include "support/text.h"

namespace {

using namespace flexc;
using analysis::TileClass;
using analysis::TiledAxis;

constexpr TiledAxis kQueries{61, 5, 16}, kKeys{83, 0, 16};

struct Tile {
    int b, h, first_q, last_q, first_kv, last_kv;
};
// 0 empty, 1 undecided, 2 full; 3 undecided by intervals, and its corners differ
using Function = int(const std::uint64_t*, const Tile*);

constexpr std::string_view kPrelude = R"(#include "common/mod_prelude.cuh"
#include "common/interval.h"
#include "common/corners.cuh"
struct Tile { int b, h, first_q, last_q, first_kv, last_kv; };
)";

// What block_mask.cu does for one tile.
constexpr std::string_view kCaller = R"(
extern "C" int {name}(const unsigned long long* words, const Tile* t) {{
    using namespace mod;
    const Arguments& arguments = *reinterpret_cast<const Arguments*>(words);
    const Launch launch = at_launch(arguments);
    const Head head = at_head(arguments, launch, t->b, t->h, t->h);
    interval::Fact queries[kQueryFacts + 1], keys[kKeyFacts + 1], one[kQueryFacts + kKeyFacts + 1];
    for (int q = t->first_q; q <= t->last_q; ++q) {{
        query_facts(at_row(arguments, launch, head, t->b, t->h, t->h, q), one);
        for (int i = 0; i < kQueryFacts; ++i)
            queries[i] = q == t->first_q ? one[i] : interval::hull(queries[i], one[i]);
    }}
    for (int kv = t->first_kv; kv <= t->last_kv; ++kv) {{
        key_facts(at_column(arguments, launch, head, t->b, t->h, t->h, kv), one);
        for (int i = 0; i < kKeyFacts; ++i)
            keys[i] = kv == t->first_kv ? one[i] : interval::hull(keys[i], one[i]);
    }}
    const interval::Fact seen = tile_visible(
        arguments, launch, head, t->b, t->h, t->h, {{double(t->first_q), double(t->last_q)}},
        {{double(t->first_kv), double(t->last_kv)}}, queries, keys);
    if (seen.low == seen.high) return seen.high == 0 ? 0 : 2;
    const bool differ = corners_differ(t->first_q, t->last_q, t->first_kv, t->last_kv,
                                       [&](int q, int kv) {{
        const Row row = at_row(arguments, launch, head, t->b, t->h, t->h, q);
        const Column column = at_column(arguments, launch, head, t->b, t->h, t->h, kv);
        return visible(At{{arguments, launch, head, row, column, t->b, t->h, t->h, q, kv}});
    }});
    return differ ? 3 : 1;
}}
)";

std::string text_of(const passes::Mod& mod, const std::string& name) {
    plan::KernelConfig config;
    config.kind = plan::KernelKind::block_mask;
    std::string text = test::emitted(mod, config, {});
    text.replace(text.find("#pragma once"), 12, "");
    return formatted("#define mod mod_{}\n{}", name, text) +
           formatted(fmt::runtime(kCaller), fmt::arg("name", name)) + "#undef mod\n";
}

} // namespace

TEST_CASE("generated tile tests decide what the analysis decides") {
    const std::vector<test::MaskCase> cases = test::mask_cases();
    std::vector<test::MaskInstance> masks;
    std::string text(kPrelude);
    for (std::size_t i = 0; i < cases.size(); ++i) {
        masks.emplace_back(cases[i],
                           test::MaskSizes{kQueries.offset + kQueries.length, kKeys.length});
        text += text_of(masks.back().mod(), formatted("mask_{}", i));
    }
    const test::HostModule module(text);
    int by_corners = 0, by_look = 0;
    for (std::size_t i = 0; i < cases.size(); ++i) {
        CAPTURE(cases[i].text);
        const ir::Environment& environment = masks[i].move(1, 1);
        const test::HostArguments arguments(masks[i].mod(), environment);
        auto* function = module.function<Function>(formatted("mask_{}", i));
        const analysis::TileClassifier tiles(masks[i].mod().program, masks[i].mod().mask,
                                             environment, kQueries, kKeys);
        for (std::int64_t q = 0; q < kQueries.tiles(); ++q)
            for (std::int64_t kv = 0; kv < kKeys.tiles(); ++kv) {
                const auto at = [](std::int64_t position, const TiledAxis& axis) {
                    return static_cast<int>(position + axis.offset);
                };
                const Tile tile{1,
                                1,
                                at(kQueries.begin(q), kQueries),
                                at(kQueries.end(q) - 1, kQueries),
                                at(kKeys.begin(kv), kKeys),
                                at(kKeys.end(kv) - 1, kKeys)};
                const auto found = tiles.test(q, kv);
                const int told = function(arguments.words(), &tile);
                CHECK((told == 1 || told == 3) == !found);
                if (found) CHECK((told == 2) == (*found == TileClass::full));
                if (told == 3) CHECK(tiles.classify(q, kv) == TileClass::partial);
                by_corners += told == 3;
                by_look += told == 1;
            }
    }
    CHECK(by_corners > 2 * by_look);
}
