// dS added to gradients of reads whose addresses are affine in q and kv, as backward_sm90.cu does:
// each warp run by 32 threads of the host, against sums element by element.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "analysis/call_range.h"
#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "d_scores.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/gradient_order.h"
#include "passes/gradient_sum.h"
#include "passes/table_gradient.h"
#include "plan/plan.h"
#include "random_data.h"
#include "sm90/arguments.h"

namespace {

using namespace flexc;

// d_scores: [queries of a tile][keys of a tile], bits of bf16.
using Function = void(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                      int tile_query, int first_key, const unsigned short* d_scores);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/gradients/shifted.cuh"
using namespace sm90;
unsigned char shared_memory[1];
extern "C" void run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int tile_query, int first_key, const unsigned short* d_scores) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    const Shared shared{0};
    store_tile(kLayout.d_scores, mod::kQueryTile, mod::kKeyTile, d_scores);
    for (int warp = 0; warp < kSumWarps; ++warp)
        run_warp([&](int) {
            add_shifted(*attention, arguments, place,
                        ShiftedPanel(WarpPanel(shared, 0, tile_query, first_key, warp)));
        });
}
)";

// All blocks of a head. ranges: of each tile of keys, the first tile of queries that its block
// visits and the one behind the last.
using AllFunction = void(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                         const int* ranges, const unsigned short* const* d_scores);

constexpr std::string_view kAllText = R"(
extern "C" void run_all(const unsigned long long* words, const KernelArguments* attention, int head,
                        const int* ranges, const unsigned short* const* d_scores) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    const Shared shared{0};
    for (int first_key = 0; first_key < attention->kv_len; first_key += mod::kKeyTile) {
        const KeyTile keys(place.b, place.h_kv, first_key);
        const TileRange tiles{*ranges++, *ranges++};
        for (int tile = tiles.begin; tile <= tiles.end; ++tile) {
            const bool is_end = tile == tiles.end;
            if (!is_end) store_tile(kLayout.d_scores, mod::kQueryTile, mod::kKeyTile, *d_scores++);
            for (int warp = 0; warp < kSumWarps; ++warp)
                run_warp([&](int) {
                    if (!is_end)
                        add_shifted(*attention, arguments, place,
                                    ShiftedPanel(WarpPanel(shared, 0, tile * mod::kQueryTile,
                                                           first_key, warp)));
                    visit_rests(*attention, arguments, place, keys, warp, [&](const auto& rest) {
                        is_end ? rest.clear_others(tiles) : rest.clear_with(tile, tiles);
                    });
                });
        }
    }
}
)";

plan::KernelConfig config_of(int head_dim) {
    return plan::candidates({.kind = plan::KernelKind::backward_fused,
                             .arch = 90,
                             .dtype = DType::bf16,
                             .head_dim = head_dim,
                             .head_dim_v = head_dim,
                             .has_score_mod = true,
                             .gradients = {.by_shift = true}})[0];
}

// Whether the call keeps indices inside of buffers, where the mod's kernels ask it to.
bool is_inside(const passes::Mod& mod, const ::sm90::KernelArguments& attention,
               const ir::Environment& at) {
    using analysis::positions;
    const analysis::CallValues values{.b = positions(0, attention.batch),
                                      .h = positions(0, attention.heads),
                                      .h_kv = positions(0, attention.kv_heads),
                                      .q = positions(attention.q_offset, attention.q_len),
                                      .kv = positions(attention.kv_offset, attention.kv_len),
                                      .sizes = at.sizes,
                                      .params = {}};
    return analysis::are_inside(mod.program, mod.inside_reads, values);
}

void check(const std::string& text, int reads, bool are_apart, int head_dim, std::mt19937& random) {
    CAPTURE(text);
    CAPTURE(head_dim);
    const auto below = test::draws_below(random);
    auto lowered = test::lower_text(text, head_dim, head_dim, true);
    REQUIRE_MESSAGE(lowered.has_value(), (lowered ? std::string() : lowered.error().message));
    const passes::Mod* const mod =
        lowered->inside_calls.empty() ? &*lowered : &lowered->inside_calls.front();
    REQUIRE(passes::sums_shifts(*mod));
    REQUIRE(passes::count_sums_by(*mod, passes::GradientSum::shifted, {.sums_shifts = true}) ==
            reads);
    for (const passes::ReadGradient& gradient : mod->gradients)
        CHECK(passes::are_apart(*mod, gradient) == are_apart);
    const plan::KernelConfig config = config_of(head_dim);
    REQUIRE(config.family == "sm90");
    REQUIRE(config.sums.sums_shifts);
    const test::HostModule module(
        std::string(kText),
        test::emitted(*mod, config,
                      {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim}));

    for (int round = 0; round < 8; ++round) {
        ::sm90::KernelArguments attention;
        ir::Environment at;
        do {
            attention = test::random_attention(1 + below(400), 1 + below(400), random);
            at = test::environment_of(attention, head_dim);
            while (at.sizes.size() < mod->program.sizes.size())
                at.sizes.push_back(1 + below(700));
        } while (!is_inside(*mod, attention, at));
        attention.dk_flags = below(2) * kOutputAccumulate;
        const test::RandomData data(mod->program, at, random);
        test::HostArguments arguments(*mod, at, test::HostArguments::Rows{});
        arguments.clear_gradients();

        const test::TilePlace place =
            test::random_tile(attention, config.block.query_tile, config.block.key_tile, random);
        const test::TileOfDScores tile = test::tile_of_d_scores(
            *mod, attention, at, place, arguments.empty_gradients(),
            [&](int, int) { return test::random_real(random); },
            [&](const passes::ReadGradient& gradient, const ir::Environment&) {
                return passes::table_factor(*mod, gradient);
            });
        module.function<Function>("run")(arguments.words(), &attention, place.head,
                                         place.first_query, place.first_key, tile.values.data());
        int wrong = 0;
        for (std::size_t buffer = 0; buffer < tile.gradients.size(); ++buffer)
            for (std::size_t i = 0; i < tile.gradients[buffer].size(); ++i) {
                const auto sum = static_cast<double>(arguments.gradient(buffer, i));
                if (!(std::abs(tile.gradients[buffer][i] - sum) <= 1e-4)) ++wrong;
            }
        CHECK(wrong == 0);
    }
}

// Every element of a gradient that nobody has cleared.
void check_all(const std::string& text, int head_dim, std::mt19937& random) {
    CAPTURE(text);
    CAPTURE(head_dim);
    const auto below = test::draws_below(random);
    auto mod = test::lower_text(text, head_dim, head_dim, true);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    for (const passes::ReadGradient& gradient : mod->gradients)
        REQUIRE(passes::has_whole_lines(*mod, gradient));
    const plan::KernelConfig config = config_of(head_dim);
    const test::HostModule module(
        std::string(kText) + std::string(kAllText),
        test::emitted(*mod, config,
                      {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim}));
    for (int round = 0; round < 4; ++round) {
        ::sm90::KernelArguments attention =
            test::random_attention(1 + below(300), 1 + below(300), random);
        attention.q_offset = attention.kv_offset = 0;
        attention.batch = 1;
        attention.heads = attention.kv_heads = 2;
        ir::Environment at = test::environment_of(attention, head_dim);
        const test::RandomData data(mod->program, at, random);
        test::HostArguments arguments(*mod, at, test::HostArguments::Rows{});
        arguments.clear_gradients(NAN);

        std::vector<std::vector<double>> expected = arguments.empty_gradients();
        const int query_tiles =
            (attention.q_len + config.block.query_tile - 1) / config.block.query_tile;
        for (int head = 0; head < attention.heads; ++head) {
            std::vector<int> ranges;
            std::vector<std::vector<unsigned short>> tiles;
            for (int key = 0; key < attention.kv_len; key += config.block.key_tile) {
                const int begin = below(query_tiles), end = begin + below(query_tiles - begin + 1);
                ranges.insert(ranges.end(), {begin, end});
                for (int tile = begin; tile < end; ++tile) {
                    test::TileOfDScores one = test::tile_of_d_scores(
                        *mod, attention, at,
                        {.head = head,
                         .first_query = tile * config.block.query_tile,
                         .queries = config.block.query_tile,
                         .first_key = key,
                         .keys = config.block.key_tile},
                        std::move(expected), [&](int, int) { return test::random_real(random); },
                        [&](const passes::ReadGradient& gradient, const ir::Environment&) {
                            return passes::table_factor(*mod, gradient);
                        });
                    expected = std::move(one.gradients);
                    tiles.push_back(std::move(one.values));
                }
            }
            std::vector<const unsigned short*> d_scores;
            d_scores.reserve(tiles.size());
            for (const auto& tile : tiles)
                d_scores.push_back(tile.data());
            module.function<AllFunction>("run_all")(arguments.words(), &attention, head,
                                                    ranges.data(), d_scores.data());
        }
        int wrong = 0;
        for (std::size_t buffer = 0; buffer < expected.size(); ++buffer)
            for (std::size_t i = 0; i < expected[buffer].size(); ++i)
                if (!(std::abs(expected[buffer][i] - arguments.gradient(buffer, i)) <= 1e-4))
                    ++wrong;
        CHECK(wrong == 0);
    }
}

} // namespace

TEST_CASE("blocks store every element of a shifted gradient with whole lines") {
    std::mt19937 random(test::fresh_seed());
    for (const std::string program :
         {"buffer r: bf16[B, H, Q_LEN, KV_LEN] grad\nscore_mod = score + r[b, h, q_idx, q_idx - "
          "kv_idx]",
          "buffer r: f32[H, Q_LEN, B, 700] grad\nscore_mod = score - r[h, q_idx, b, kv_idx - q_idx "
          "+ "
          "Q_LEN - 1]",
          "buffer r: f32[B, H, KV_LEN, 333] grad\nscore_mod = score + r[b, h, kv_idx, q_idx - "
          "kv_idx "
          "+ 50] * 0.5",
          "buffer c: f32[B, H, Q_LEN, 20] grad\nbuffer p: bf16[B, H, KV_LEN, 800] grad\nscore_mod "
          "= "
          "score + c[b, h, q_idx, kv_idx - q_idx] + p[b, h, kv_idx, kv_idx + q_idx]"})
        for (const int head_dim : {64, 192})
            check_all(program, head_dim, random);
}

TEST_CASE("gradients of shifted reads go to their places, line by line") {
    std::mt19937 random(test::fresh_seed());
    struct Program {
        std::string text;
        int reads = 1;
        bool are_apart = false; // elements, but for those at the ends of a clamp
    };
    const std::vector<Program> programs = {
        {"buffer r: bf16[B, H, Q_LEN, KV_LEN] grad\nscore_mod = score + r[b, h, q_idx, q_idx - "
         "kv_idx]",
         1, true},
        {"buffer r: f32[H, Q_LEN, 500] grad\nscore_mod = score - 0.5 * r[h, q_idx, kv_idx - q_idx "
         "+ "
         "Q_LEN - 1]"},
        {"buffer r: f16[KV_LEN, 300] grad\nscore_mod = score + r[kv_idx, kv_idx - q_idx + 100]"},
        {"buffer r: f32[B, KV_LEN, 300] grad\nscore_mod = score + r[b, kv_idx, q_idx - kv_idx + "
         "50]"},
        {"buffer c: bf16[B, H, Q_LEN, 64] grad\nbuffer p: bf16[B, H, KV_LEN, 64] grad\nscore_mod = "
         "score + c[b, h, q_idx, clamp(q_idx - kv_idx + 32, 0, 63)] + p[b, h, kv_idx, clamp(q_idx "
         "- "
         "kv_idx + 32, 0, 63)]",
         2, true},
        {"buffer p: f32[KV_LEN, 20] grad\nscore_mod = score + p[kv_idx, 19 - clamp(kv_idx - q_idx, "
         "0, "
         "19)]"},
        {"buffer p: f32[Q_LEN, 200] grad\nscore_mod = score + p[q_idx, min(max(kv_idx - q_idx, "
         "-100), 99) + 100]"},
        {"buffer d: f32[Q_LEN, KV_LEN] grad\nbuffer p: f32[Q_LEN, 200] grad\nscore_mod = score + "
         "d[q_idx, kv_idx] + p[q_idx, q_idx - kv_idx]",
         2},
        {"buffer r: bf16[B, H, Q_LEN, 900] grad\nscore_mod = score + r[b, h, q_idx, kv_idx - q_idx "
         "+ 450] + r[b, h, q_idx, kv_idx + q_idx]",
         2},
        {"buffer r: bf16[B, H_KV, Q_LEN, 900] grad\nscore_mod = score + r[b, h_kv, q_idx, kv_idx - "
         "q_idx + 450]"},
        // Rows of keys, and rows that begin at another key.
        {"buffer d: bf16[H, KV_LEN, Q_LEN] grad\nscore_mod = score + d[h, kv_idx, q_idx]"},
        {"buffer d: f32[B, H, Q_LEN, 450] grad\nscore_mod = score - d[b, h, q_idx, kv_idx + 7]", 1,
         true},
        // Calls tell that these are inside.
        {"buffer r: f32[B, H, KV_LEN, 300] grad\nscore_mod = score + r[b, h, q_idx + KV_LEN - "
         "Q_LEN, kv_idx - q_idx + 90]",
         1, true},
        {"buffer r: f32[N, M, 300] grad\nscore_mod = score + r[h // (H // N), q_idx + 3, kv_idx - "
         "q_idx - KV_LEN + Q_LEN]"},
        {"buffer p: f32[H, Q_LEN, M] grad\nscore_mod = score + p[h, q_idx, clamp(kv_idx - q_idx, "
         "-30, 30) + 30]"},
        {"buffer p: bf16[B, KV_LEN, M] grad\nscore_mod = score - 2 * p[b, kv_idx, clamp(q_idx - "
         "kv_idx + M // 2, 0, 2 * (M // 2) - 1)]"},
        {"buffer d: f32[N, M] grad\nscore_mod = score + d[kv_idx, q_idx + KV_LEN - Q_LEN]"},
    };
    for (const Program& program : programs)
        for (const int head_dim : {64, 192})
            check(program.text, program.reads, program.are_apart, head_dim, random);
}
