// Sums of dS over a 2-D key index, as backward_sm90.cu adds them to gradients of buffers: run on
// the host for every thread in turn, against sums element by element.
#include <algorithm>
#include <cmath>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "d_scores.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/gradient_sum.h"
#include "plan/plan.h"
#include "random_data.h"

namespace {

using namespace flexc;

// d_scores: [queries of a tile][keys of a tile], bits of bf16.
using Function = void(const std::uint64_t* words, const AttentionArguments*, int head,
                      int tile_query, int first_key, const unsigned short* d_scores);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/gradients/index_2d.cuh"
using namespace sm90;
unsigned char shared_memory[1];
extern "C" void run(const unsigned long long* words, const AttentionArguments* attention, int head,
                    int tile_query, int first_key, const unsigned short* d_scores) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    const unsigned tile = 4096;
    store_tile(tile, mod::kQueryTile, mod::kKeyTile, d_scores);
    const Index2dSums sums{*attention, arguments, place, first_key,
                        min(mod::kKeyTile, attention->kv_len - first_key)};
    for (int warp = 0; warp < 2; ++warp)
        for (unsigned lane = 0; lane < 32; ++lane) {
            threadIdx.x = 32 * (2 + warp) + lane;
            if (mod::KeyIndex2d::kSumsQuotients) sums.add_quotients(tile, tile_query, warp);
            if (mod::KeyIndex2d::kSumsRemainders) sums.add_remainders(tile, tile_query, warp);
        }
}
)";

// How many elements got a gradient: none where a drawn tile's keys all lie outside the buffers.
int check(const std::string& text, int width, std::mt19937& random) {
    CAPTURE(text);
    const auto below = test::draws_below(random);
    auto mod = test::lower_text(text, 64, 64, true);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    CHECK(passes::key_width_of_gradients(*mod) == width);
    const bool uses_score = mod->dependence[mod->d_score].has(analysis::Dependence::score);
    const plan::KernelConfig config =
        plan::candidates({.kind = plan::KernelKind::backward_fused,
                          .arch = 90,
                          .dtype = DType::bf16,
                          .has_score_mod = true,
                          .derivative = {.uses_score = uses_score},
                          .gradients = {.any = !mod->gradients.empty(),
                                        .index_2d = passes::index_2d_reads(*mod)}})[below(2)];
    REQUIRE(config.family == "sm90");
    CHECK(config.sums.key_width == width);
    const test::HostModule module(std::string(kText),
                                  test::emitted(*mod, config, {.dtype = DType::bf16}));

    AttentionArguments attention{};
    attention.batch = 2;
    attention.heads = 4;
    attention.kv_heads = 2;
    attention.q_len = 100 + below(40);
    attention.kv_len = 140 + below(200);
    attention.q_offset = below(9);
    attention.kv_offset = width * below(4);
    ir::Environment at = test::environment_of(attention, 64);
    const test::RandomData data(mod->program, at, random);
    test::HostArguments arguments(*mod, at);
    arguments.clear_gradients();

    const test::TilePlace place =
        test::random_tile(attention, config.block.query_tile, config.block.key_tile, random);
    const test::TileOfDScores tile = test::tile_of_d_scores(
        *mod, attention, at, place, arguments.empty_gradients(),
        [&](int, int) { return test::random_real(random); },
        [](const passes::ReadGradient&, const ir::Environment&) { return 1.0; });
    module.function<Function>("run")(arguments.words(), &attention, place.head, place.first_query,
                                     place.first_key, tile.values.data());
    int wrong = 0, added = 0;
    for (std::size_t buffer = 0; buffer < tile.gradients.size(); ++buffer)
        for (std::size_t i = 0; i < tile.gradients[buffer].size(); ++i) {
            const double truth = tile.gradients[buffer][i];
            if (truth != 0) ++added;
            if (std::abs(truth - static_cast<double>(arguments.gradient(buffer, i))) > 1e-3)
                ++wrong;
        }
    CHECK(wrong == 0);
    return added;
}

} // namespace

TEST_CASE("gradients are summed over rows and columns of a grid of keys") {
    std::mt19937 random(test::fresh_seed());
    const std::string tables = "buffer s: f32[B, H, Q_LEN, N] grad\n"
                               "buffer t: f32[B, H, Q_LEN, M] grad\n";
    // A compile each: some of them.
    std::vector<int> widths = {2, 3, 7, 10, 14, 16, 24, 33, 64, 100, 128};
    std::ranges::shuffle(widths, random);
    int added = 0;
    for (const int width : std::span(widths).first(5)) {
        const std::string w = std::to_string(width);
        added += check(tables + "score_mod = score + s[b, h, q_idx - 2, kv_idx // " + w +
                           "] + t[b, h, q_idx, kv_idx % " + w + "]",
                       width, random);
    }
    added +=
        check(tables + "score_mod = score + s[b, h, q_idx // 5, kv_idx // 28] + t[b, h, 2, q_idx + "
                       "kv_idx // 14]",
              14, random);
    added += check(
        "buffer t: f32[H, Q_LEN, 14] grad\n"
        "score_mod = 3 * tanh((score + t[h, q_idx // 14, kv_idx % 14] + t[h, q_idx % 14, kv_idx "
        "% 7]) / 3)",
        14, random);
    // Rows of more keys than a tile has.
    for (const auto& [keys, width] : {std::pair(256, 128), {200, 100}})
        added += check(tables + "score_mod = score + s[b, h, q_idx, kv_idx // " +
                           std::to_string(keys) + "]",
                       width, random);
    CHECK(added > 0);
}
