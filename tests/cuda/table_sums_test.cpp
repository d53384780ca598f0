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
#include "host_arguments.h"
#include "host_module.h"
#include "passes/gradient_sum.h"
#include "passes/table_gradient.h"
#include "plan/plan.h"
#include "random_data.h"
#include "sm90/arguments.h"

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
    bool is_clear = true;
    for (int warp = 0; warp < kSumWarps; ++warp) {
        if (sums_kinds<kMultipliesKinds>(*attention, arguments, place, shared, tile_query,
                                         first_key, warp))
            continue;
        run_warp([&](int) {
            const WarpPanel panel(shared, 0, tile_query, first_key, warp);
            const TableTile tile(*attention, arguments, place, panel,
                                 shared.base + kLayout.tables + warp * 4 * mod::kTableWords);
            const float largest = tile.largest();
            if (largest != 0) add_tables(tile, largest);
        });
        for (int i = 0; i < mod::kTableWords; ++i)
            is_clear = is_clear &&
                       load_shared_word(kLayout.tables + 4 * (warp * mod::kTableWords + i)) == 0;
    }
    return is_clear;
}
)";

struct Tables {
    std::string text;
    double scale = 1;       // of dS
    bool is_finite = true;  // dS
    int sums = 1;           // reads that are summed so
    bool are_kinds = false; // of which one is by few kinds of queries and keys
};

// How many entries got a gradient.
int check(const Tables& tables, int head_dim, std::mt19937& random) {
    CAPTURE(tables.text);
    CAPTURE(head_dim);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    auto mod = test::lower_text(tables.text, head_dim, head_dim, true);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
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
                                                        .sums_tables = true})[0];
    REQUIRE(config.is_warp_specialized);
    REQUIRE(config.table_words > 0);
    const test::HostModule module(
        std::string(kText),
        test::emitted(*mod, config,
                      {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim}));

    int added = 0;
    for (int round = 0; round < 3; ++round) {
        const ::sm90::KernelArguments attention =
            test::random_attention(90 + below(90), 140 + below(200), random);
        ir::Environment at = test::environment_of(attention, head_dim);
        const test::RandomData data(mod->program, at, random);
        test::HostArguments arguments(*mod, at);
        arguments.clear_gradients();

        const test::TilePlace place =
            test::random_tile(attention, config.query_tile, config.key_tile, random);
        const int infinite = tables.is_finite ? -1 : below(60);
        const test::TileOfDScores tile = test::tile_of_d_scores(
            *mod, attention, at, place, arguments.empty_gradients(),
            [&](int row, int column) -> double {
                if (row == infinite / 2 && column == infinite) return INFINITY;
                return test::random_real(random) * tables.scale;
            },
            [&](const passes::ReadGradient& gradient,
                const ir::Environment& of_element) -> std::optional<double> {
                if (passes::gradient_sum(*mod, gradient, {.sums_tables = true}) !=
                    passes::GradientSum::table)
                    return {};
                const ir::NodeId choice = passes::table_choice(*mod, gradient);
                if (choice != ir::kNoNode &&
                    ir::evaluate_real(mod->program, choice, of_element) == 0)
                    return {};
                return gradient.sum_factor == ir::kNoNode
                           ? passes::table_factor(*mod, gradient)
                           : ir::evaluate_real(mod->program, gradient.sum_factor, of_element);
            });
        CHECK(module.function<Function>("run")(arguments.words(), &attention, place.head,
                                               place.first_query, place.first_key,
                                               tile.values.data()));
        int wrong = 0;
        for (std::size_t buffer = 0; buffer < tile.gradients.size(); ++buffer)
            for (std::size_t i = 0; i < tile.gradients[buffer].size(); ++i) {
                const double truth = tile.gradients[buffer][i];
                const int terms = tile.terms[buffer][i];
                const auto sum = static_cast<double>(arguments.gradient(buffer, i));
                added += terms > 0 ? 1 : 0;
                // Half a unit of 19 bits below the largest for each term, and roundings to float.
                const double allowed =
                    tables.scale * (1 + terms) * 0x1p-17 + 1e-6 * std::abs(truth);
                if (std::isfinite(truth) ? std::abs(truth - sum) > allowed : sum != truth) ++wrong;
            }
        CHECK(wrong == 0);
    }
    return added;
}

std::string number(int x) { return std::to_string(x); }

} // namespace

TEST_CASE("gradients of tables are summed by entry") {
    std::random_device source;
    const unsigned seed = source();
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int w = 3 + below(40), rows = 440 / w + 2;
    const std::string of_rows = "q_idx // " + number(w) + " - kv_idx // " + number(w);
    const std::string of_columns = "q_idx % " + number(w) + " - kv_idx % " + number(w);
    const std::string kinds = "buffer g: i8[Q_LEN]\nbuffer k: i8[KV_LEN]\n";
    const std::vector<Tables> cases = {
        // An image.
        {"buffer t: f32[H, " + number(2 * rows) + ", " + number(2 * w - 1) +
         "] grad\nscore_mod = score + t[h, " + of_rows + " + " + number(rows) + ", " + of_columns +
         " + " + number(w - 1) + "]"},
        // The same with its ends inside of the sequences.
        {"buffer t: f32[4, 7] grad\nscore_mod = score - t[" + of_columns + " + 2, " + of_rows +
         " + 3] * 0.5\n"},
        // A volume.
        {"buffer t: f32[20, 9, 11, H] grad\nscore_mod = score + t[q_idx // 30 - kv_idx // 30 + 9, "
         "q_idx // 6 % 5 - kv_idx // 6 % 5 + 4, q_idx % 6 - kv_idx % 6 + 5, h]",
         0x1p-13},
        // Kinds of queries and keys, some of them outside.
        {kinds + "buffer t: f32[3, B, 4] grad\nscore_mod = score + t[g[q_idx], b, k[kv_idx]]",
         0x1p66, true, 1, true},
        {kinds + "buffer t: f32[12] grad\nscore_mod = score + t[g[q_idx] * 4 + k[kv_idx] - 3]"},
        // As many as products have rows for, and more than one warp has.
        {"buffer t: f32[32, 27, H] grad\nscore_mod = score + t[kv_idx * 7 % 34, q_idx * 5 % 29, h]",
         0x1p-20, true, 1, true},
        {"buffer t: f32[H, 9, 16] grad\nscore_mod = score - t[h, q_idx * 5 % 9, kv_idx * 7 % 16] "
         "* 0.5",
         1, true, 1, true},
        {"buffer t: f32[20, 20] grad\nscore_mod = score + t[q_idx % 20, kv_idx % 21]", 1, false, 1,
         true},
        {"buffer t: f32[33, 3] grad\nscore_mod = score + t[q_idx % 33, kv_idx % 3]"},
        // More entries than there is memory for.
        {"buffer t: f32[9000] grad\nscore_mod = score + t[(q_idx * 37) % 4500 + (kv_idx * 29) % "
         "4500]"},
        {kinds + "buffer t: f32[5, 5] grad\nbuffer u: f32[H, 25] grad\nscore_mod = score + "
                 "t[g[q_idx], k[kv_idx]] + u[h, 5 * k[kv_idx] + g[q_idx]]",
         1, true, 2, true},
        {kinds + "buffer t: f32[5, 5] grad\nscore_mod = score + t[g[q_idx], k[kv_idx]]", 1, false,
         1, true},
        // Distances along axes, absolute and clamped.
        {"buffer t: f32[64, 64, H] grad\nscore_mod = score + t[abs(" + of_rows + "), abs(" +
         of_columns + "), h]"},
        {"buffer t: f32[15, H] grad\nbuffer u: bf16[H, 9] grad\nscore_mod = score + t[clamp(" +
             of_rows + ", -7, 7) + 7, h] - 2 * u[h, min(abs(" + of_columns + "), 8)]",
         1, true, 2},
        // A number stored for each pair, some of them outside; all on one entry.
        {"buffer t: f32[H, 4] grad\nbuffer d: i8[B, Q_LEN, KV_LEN]\nscore_mod = score + "
         "t[h, d[b, q_idx, kv_idx]]",
         0x1p-40},
        {"buffer t: f32[40] grad\nbuffer d: i8[Q_LEN, KV_LEN]\nscore_mod = score + "
         "t[max(d[q_idx, kv_idx], 39)]"},
        // Buckets of differences of captured numbers.
        {"buffer t: f32[16, H] grad\nbuffer ts: f32[B, Q_LEN]\nbuffer of: f32[B, KV_LEN]\n"
         "score_mod = score + t[clamp(int(log(max(abs(ts[b, q_idx] - of[b, kv_idx]), 0.01)) / "
         "0.3), 0, 15), h]"},
        // A class token beside an image.
        {"buffer t: f32[" + number((2 * rows - 1) * (2 * w - 1) + 3) +
         ", H] grad\nscore_mod {\n"
         "grid = ((q_idx - 1) // " +
         number(w) + " - (kv_idx - 1) // " + number(w) + ") * " + number(2 * w - 1) +
         " + (q_idx - 1) % " + number(w) + " - (kv_idx - 1) % " + number(w) +
         "\nscore + t[where(q_idx == 0, where(kv_idx == 0, 2, 0), where(kv_idx == 0, 1, grid + "
         "3)), "
         "h]\n}"},
        // Indices that have no room in 32 bits, and those whose sums may have none.
        {kinds + "buffer t: f32[12] grad\nscore_mod = score + t[(g[q_idx] - 1) * 4000000000 + "
                 "k[kv_idx]]"},
        {"buffer g: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\nbuffer t: f32[H, 12] grad\nscore_mod = "
         "score + t[h, g[q_idx] * 2 + k[kv_idx]]"},
        {"buffer g: i64[Q_LEN]\nbuffer t: f32[9, 9] grad\nscore_mod = score + t[g[q_idx], "
         "g[kv_idx % Q_LEN]]"},
        // Numbers of a head beside them.
        {kinds + "buffer a: f32[B, H]\nbuffer t: f32[H, 5, 5] grad\nscore_mod = score + a[b, h] * "
                 "t[h, g[q_idx], k[kv_idx]]",
         4, true, 1, true},
        {kinds + "buffer a: f32[H]\nbuffer t: f32[5, 5] grad\nscore_mod = 3 * tanh((score - a[h] * "
                 "t[max(g[q_idx], k[kv_idx]), 1]) / 3)",
         4},
        // Elements that add nothing.
        {kinds + "buffer t: f32[5, 5] grad\nscore_mod = score * 2 + where(q_idx % 7 == 2 or "
                 "k[kv_idx] == 3, 0, t[g[q_idx], k[kv_idx]])"},
        {"buffer t: f32[64, H] grad\nscore_mod = score - where(q_idx > 3, where(kv_idx > 3, "
         "t[abs(" +
         of_columns + "), h], 0), 0) * 3"},
        // Entries of which a sample of the rows does not meet all, and more than there is memory
        // for.
        {"buffer t: f32[9000] grad\nscore_mod = score + t[(q_idx * 31 + kv_idx * 17) % 9000]"},
        {"buffer t: f32[9000] grad\nscore_mod = score + t[(q_idx * 31 + kv_idx) % 7 * (kv_idx % 2 "
         "* "
         "1000 + 30)]"},
        {"buffer t: f32[50] grad\nscore_mod = score + t[(q_idx * 31 + kv_idx * 17) % 50]", 1,
         false}};
    int added = 0;
    for (const Tables& tables : cases)
        added += check(tables, below(3) == 0 ? 192 : 64, random);
    CHECK(added > 100);
}
