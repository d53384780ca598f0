// Sums of dS over entries of tables, as backward_sm90.cu adds them to gradients of buffers: each
// warp run by 32 threads of the host, against sums element by element.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "d_scores.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/gradient_sum.h"
#include "passes/inside_calls.h"
#include "passes/table_gradient.h"
#include "plan/plan.h"
#include "random_data.h"
#include "sm90/arguments.h"
#include "table_programs.h"

namespace {

using namespace flexc;

// d_scores: [queries of a tile][keys of a tile], bits of bf16. Whether all memory of sums is zero
// afterwards.
using Function = bool(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                      int tile_query, int first_key, const unsigned short* d_scores);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/gradients/kinds.cuh"
using namespace sm90;
unsigned char shared_memory[1];
template <bool kAreKinds>
static bool sums_kinds(const KernelArguments& attention, const mod::Arguments& arguments,
                       const HeadPlace& place, Shared shared, int tile_query, int first_key,
                       int warp) {
    if constexpr (kAreKinds)
        run_warp([&](int) {
            KindSums<kAreKinds ? 0 : 1> sums(attention, arguments, place, shared, first_key, warp);
            sums.add(0, tile_query);
            sums.flush();
        });
    return kAreKinds;
}
extern "C" bool run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int tile_query, int first_key, const unsigned short* d_scores) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    const Shared shared{0};
    store_tile(kLayout.d_scores, mod::kQueryTile, mod::kKeyTile, d_scores);
    constexpr int kWords = mod::TableGradients::kWords;
    bool is_clear = true;
    for (int warp = 0; warp < kSumWarps; ++warp) {
        if (sums_kinds<kMultipliesKinds>(*attention, arguments, place, shared, tile_query,
                                         first_key, warp))
            continue;
        run_warp([&](int) {
            const WarpPanel panel(shared, 0, tile_query, first_key, warp);
            const TableTile tile(*attention, arguments, place, panel,
                                 shared.base + kLayout.tables + warp * 4 * kWords);
            const float largest = tile.largest();
            if (largest != 0) add_tables<-1>(tile, largest);
        });
        for (int i = 0; i < kWords; ++i)
            is_clear =
                is_clear && load_shared_word(kLayout.tables + 4 * (warp * kWords + i)) == 0;
    }
    return is_clear;
}
)";

// How many entries got a gradient.
int check(const test::TableProgram& tables, int head_dim, std::mt19937& random) {
    CAPTURE(tables.text);
    CAPTURE(head_dim);
    const auto below = test::draws_below(random);
    auto lowered = test::lower_text(tables.text, head_dim, head_dim, true);
    REQUIRE_MESSAGE(lowered.has_value(), (lowered ? std::string() : lowered.error().message));
    // Calls with few kinds.
    const passes::Mod* const mod =
        lowered->inside_calls.empty() ? &*lowered : &lowered->inside_calls.front();
    REQUIRE(passes::sums_tables(*mod));
    REQUIRE(passes::count_sums_by(*mod, passes::GradientSum::table, {.sums_tables = true}) ==
            tables.sums);
    CHECK(std::ranges::any_of(mod->gradients, [&](const passes::ReadGradient& gradient) {
              return passes::kind_dims(*mod, gradient).has_value();
          }) == tables.are_kinds);
    const plan::KernelConfig config = plan::candidates({.kind = plan::KernelKind::backward_fused,
                                                        .arch = 90,
                                                        .dtype = DType::bf16,
                                                        .head_dim = head_dim,
                                                        .head_dim_v = head_dim,
                                                        .has_score_mod = true,
                                                        .gradients = {.by_table = true}})[0];
    REQUIRE(config.family == "sm90");
    REQUIRE(config.storage.table_words > 0);
    const test::HostModule module(
        std::string(kText),
        test::emitted(*mod, config,
                      {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim}));

    int added = 0;
    for (int round = 0; round < 3; ++round) {
        const ::sm90::KernelArguments attention =
            test::random_attention(90 + below(90), 140 + below(200), random);
        ir::Environment at = test::environment_of(attention, head_dim);
        if (!mod->few_kinds.empty())
            while (at.sizes.size() < mod->program.sizes.size())
                at.sizes.push_back(1 + below(passes::kMostBoundKinds));
        const test::RandomData data(mod->program, at, random);
        test::HostArguments arguments(*mod, at);
        arguments.clear_gradients();

        const test::TilePlace place =
            test::random_tile(attention, config.block.query_tile, config.block.key_tile, random);
        const int infinite = tables.is_finite ? -1 : below(60);
        const test::TileOfDScores tile = test::tile_of_d_scores(
            *mod, attention, at, place, arguments.empty_gradients(),
            [&](int row, int column) -> double {
                if (row == infinite / 2 && column == infinite) return INFINITY;
                return test::random_real(random) * tables.scale;
            },
            test::factor_of_tables(*mod));
        CHECK(module.function<Function>("run")(arguments.words(), &attention, place.head,
                                               place.first_query, place.first_key,
                                               tile.values.data()));
        // Half a unit of 19 bits below the largest for each term, and roundings to float.
        const test::ComparedEntries entries =
            test::compare_entries(arguments, tile.gradients, tile.terms, tables.scale,
                                  {.of_term = 0x1p-17, .more_terms = 1, .of_truth = 1e-6});
        CHECK(entries.wrong == 0);
        added += entries.added;
    }
    return added;
}

} // namespace

TEST_CASE("gradients of tables are summed by entry") {
    std::mt19937 random(test::fresh_seed());
    const auto below = test::draws_below(random);
    int added = 0;
    for (const test::TableProgram& tables : test::table_programs(random))
        added += check(tables, below(3) == 0 ? 192 : 64, random);
    CHECK(added > 100);
}

TEST_CASE("gradients by kinds of which a call binds the number are products with ones") {
    std::mt19937 random(test::fresh_seed());
    const std::string kinds = "buffer g: i32[Q_LEN]\nbuffer k: i64[KV_LEN]\n";
    int added = 0;
    for (const test::TableProgram& tables : std::vector<test::TableProgram>{
             {kinds + "buffer t: f32[N, N, H] grad\nscore_mod = score + t[g[q_idx], k[kv_idx], h]",
              1, true, 1, true},
             {kinds +
                  "buffer t: f32[H, M, 3] grad\nscore_mod = score - 2 * t[h, k[kv_idx] * 4 - 1, "
                  "g[q_idx]]",
              0x1p-30, true, 1, true},
             {"buffer t: bf16[B, N, M] grad\nscore_mod = score + t[b, q_idx * 7 % 18, kv_idx % 17]",
              1, false, 1, true}})
        for (const int head_dim : {64, 128})
            for (int round = 0; round < 3; ++round)
                added += check(tables, head_dim, random);
    CHECK(added > 100);
}
