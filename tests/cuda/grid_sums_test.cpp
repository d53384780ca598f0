// Gradients by differences of digits, as Hopper's backward finds them: dS summed over parts of
// diagonals in tiles that follow each other, by the lanes of a warp on the host, and folded into
// buffers; against sums element by element.
#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/tabulated.h"
#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "d_scores.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_arguments.h"
#include "host_module.h"
#include "passes/gradient_sum.h"
#include "passes/grid_gradient.h"
#include "plan/pass.h"
#include "plan/plan.h"
#include "random_data.h"
#include "sm90/arguments.h"

namespace {

using namespace flexc;

// d_scores: [tile][query][key], bits of bf16, of `tiles` from first_tile on. Whether all memory of
// sums is zero afterwards.
using Sum = bool(const ::sm90::KernelArguments*, const std::uint64_t* words, int head,
                 int first_tile, int tiles, int first_key, const unsigned short* d_scores);
using Fold = void(const ::sm90::KernelArguments*, const std::uint64_t* words);

constexpr std::string_view kSum = R"(
#include "mod.cuh"
#include "sm90/gradients/grid.cuh"
#include "sm90/gradients/grid_rows.cuh"
using namespace sm90;
unsigned char shared_memory[1];
// The warp's sums of some tiles. first_row: of its part of a tile of dS, which begins at `part`.
template <typename Sums>
void sum(std::vector<Sums> lanes, unsigned part, int first_row, int first_tile, int tiles,
         const unsigned short* d_scores) {
    for (int i = 0; i < tiles; ++i) {
        const int tile = mod::kDeterministic ? tiles - 1 - i : i;
        store_tile(kLayout.d_scores, mod::kQueryTile, mod::kKeyTile,
                   d_scores + tile * mod::kQueryTile * mod::kKeyTile);
        run_warp([&](int lane) {
            lanes[lane].add_tile(kLayout.d_scores + part + first_row * kRowBytes,
                                 (first_tile + tile) * mod::kQueryTile + first_row);
        });
    }
    run_warp([&](int lane) { lanes[lane].flush(); });
}
extern "C" bool run(const KernelArguments* attention, const unsigned long long* words, int head,
                    int first_tile, int tiles, int first_key, const unsigned short* d_scores) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    bool is_clear = true;
    for (int warp = 0; warp < kSumWarps; ++warp) {
        const unsigned memory = kLayout.tables + warp * 4 * mod::TableGradients::kWords;
        if constexpr (kGridIsAligned) {
            const int panel = kSharesKeys ? 0 : warp;
            sum(std::vector<GridSums>(
                    32, GridSums(*attention, head, memory, first_key + 64 * panel)),
                panel * kQueryPanel, kSharesKeys ? warp * GridSums::kRows : 0, first_tile, tiles,
                d_scores);
        } else {
            std::vector<GridRowSums> lanes;
            for (int lane = 0; lane < 32; ++lane) {
                threadIdx.x = lane;
                lanes.emplace_back(*attention, arguments, place, memory, first_key);
            }
            sum(std::move(lanes), 0, warp * GridRowSums::kRows, first_tile, tiles, d_scores);
        }
        for (int i = 0; i < mod::TableGradients::kWords; ++i)
            is_clear = is_clear && load_shared_word(memory + 4 * i) == 0;
    }
    return is_clear;
}
)";

constexpr std::string_view kFold = R"(
#include "mod.cuh"
#include "backward_fold_sm90.cu"
extern "C" void run(const sm90::KernelArguments* attention, const unsigned long long* words) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const int heads = attention->batch * attention->heads;
    const int blocks = heads * sm90::distance_count(*attention) / kThreads;
    for (int block = 0; block < blocks; ++block)
        for (int thread = 0; thread < kThreads; ++thread) {
            blockIdx.x = static_cast<unsigned>(block);
            threadIdx.x = static_cast<unsigned>(thread);
            flexc_backward_fold_sm90(*attention, arguments);
        }
}
)";

struct Grid {
    std::string text;
    int grid_places = 1;
    int offset_step = 8; // of positions
};

// How many entries got a gradient.
int check(const Grid& grid, int head_dim, bool is_deterministic, std::mt19937& random) {
    CAPTURE(grid.text);
    CAPTURE(head_dim);
    CAPTURE(is_deterministic);
    const auto below = test::draws_below(random);
    auto mod = test::lower_text(grid.text, head_dim, head_dim, true, false, is_deterministic);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    REQUIRE(passes::sums_grids(*mod));
    REQUIRE(static_cast<std::size_t>(
                passes::count_sums_by(*mod, passes::GradientSum::distance, {.sums_grids = true})) ==
            mod->gradients.size());
    REQUIRE(static_cast<int>(mod->digit_places.size()) == grid.grid_places);
    CHECK(passes::is_grid_aligned(*mod) == (grid.offset_step == 8));
    const cuda::EmitOptions options{
        .dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim};
    const plan::KernelConfig config =
        plan::candidates({.kind = plan::KernelKind::backward_fused,
                          .arch = 90,
                          .dtype = DType::bf16,
                          .head_dim = head_dim,
                          .head_dim_v = head_dim,
                          .has_score_mod = true,
                          .gradients = {.grid_places = grid.grid_places},
                          .deterministic = is_deterministic})
            .front();
    REQUIRE(config.family == "sm90");
    REQUIRE(config.sums.sums_grids);
    plan::KernelConfig fold;
    fold.kind = plan::KernelKind::fold;
    fold.family = "sm90";
    fold.block.key_tile = kTabulatedStep;
    fold.block.warps = kTabulatedStep / 32;
    fold.sums.sums_grids = true;
    const test::HostModule sums(std::string(kSum), test::emitted(*mod, config, options)),
        folds(std::string(kFold), test::emitted(*mod, fold, options));

    int added = 0;
    for (int tiles = 1; tiles <= 3; ++tiles) {
        ::sm90::KernelArguments attention{};
        attention.batch = 1;
        attention.heads = 2;
        attention.kv_heads = 2;
        attention.q_len = 64 * 3 + 1 + below(64);
        attention.kv_len = 130 + below(200);
        const int steps = 160 / grid.offset_step;
        attention.q_offset = grid.offset_step * below(2) * below(steps);
        attention.kv_offset = grid.offset_step * below(2) * below(steps);
        ir::Environment at = test::environment_of(attention, head_dim);
        const test::RandomData data(mod->program, at, random);
        test::HostArguments arguments(*mod, at);
        arguments.clear_gradients();
        const auto count = static_cast<std::size_t>(tabulated_length(attention.q_len, 0) +
                                                    tabulated_length(attention.kv_len, 0));
        // Of whichever type, in floats.
        std::vector<float> workspace((2 * count << grid.grid_places) * sizeof(exact::Sum) / 4);
        attention.distance_sums = workspace.data();

        const int first_tile = below(5 - tiles), head = below(2);
        const int first_key =
            config.block.key_tile * below((attention.kv_len - 1) / config.block.key_tile + 1);
        const test::TileOfDScores tile = test::tile_of_d_scores(
            *mod, attention, at,
            {.head = head,
             .first_query = 64 * first_tile,
             .queries = 64 * tiles,
             .first_key = first_key,
             .keys = config.block.key_tile},
            arguments.empty_gradients(),
            [&](int, int) -> double { return below(255) - 127; }, // exact in bf16
            [&](const passes::ReadGradient& gradient, const ir::Environment& of_element) {
                const ir::NodeId factor = passes::distance_factor(*mod, gradient);
                return factor == ir::kNoNode ? 1
                                             : ir::evaluate_real(mod->program, factor, of_element);
            });
        CHECK(sums.function<Sum>("run")(&attention, arguments.words(), head, first_tile, tiles,
                                        first_key, tile.values.data()));
        folds.function<Fold>("run")(&attention, arguments.words());
        int wrong = 0;
        for (std::size_t buffer = 0; buffer < tile.gradients.size(); ++buffer)
            for (std::size_t i = 0; i < tile.gradients[buffer].size(); ++i) {
                const double truth = tile.gradients[buffer][i];
                const int terms = tile.terms[buffer][i];
                added += terms > 0 ? 1 : 0;
                // Small integers, times factors that floats round.
                const double allowed = 1e-5 * (1 + terms);
                if (std::abs(truth - static_cast<double>(arguments.gradient(buffer, i))) > allowed)
                    ++wrong;
            }
        CHECK(wrong == 0);
    }
    return added;
}

std::string number(int x) { return std::to_string(x); }

} // namespace

namespace {

std::string difference(const std::string& digit) {
    const auto of = [&](const std::string& position) {
        std::string text = digit;
        for (std::size_t at = 0; (at = text.find('x', at)) != std::string::npos;
             at += position.size())
            text.replace(at, 1, position);
        return text;
    };
    return of("q_idx") + " - " + of("kv_idx");
}

} // namespace

TEST_CASE("dS is summed over parts of diagonals of grids and folded into tables") {
    std::mt19937 random(test::fresh_seed());
    const auto below = test::draws_below(random);
    std::vector<Grid> cases;
    for (const int w : {8 * (1 + below(5)), 8 * (2 + below(14))}) {
        const std::string row = difference("x // " + number(w)),
                          column = difference("x % " + number(w));
        // An image; some of it outside.
        cases.push_back({"buffer t: f32[H, 90, 90] grad\nscore_mod = score + t[h, " + row +
                         " + 40, " + column + " + 40]"});
        // Axes, each for itself; numbers of a head and constants beside them, and a distance.
        cases.push_back({"buffer r: f32[H, 200] grad\nbuffer c: f32[70, H] grad\nbuffer a: f32[H]\n"
                         "buffer d: f32[N] grad\nscore_mod = score + a[h] * r[h, min(abs(" +
                         row + "), 199)] - 2 * c[clamp(" + column +
                         ", -30, 39) + 30, h] + d[abs(q_idx - kv_idx)]"});
        cases.push_back(
            {"buffer a: bf16[H, 16] grad\nscore_mod = score + a[h, min(abs(" + column + "), 15)]"});
    }
    // A volume, images one after the other, digits of shifted positions.
    cases.push_back({"buffer t: f32[H, 15, 11, 31] grad\nscore_mod = score + t[h, " +
                         difference("x // 96") + " + 7, " + difference("x // 16 % 6") + " + 5, " +
                         difference("x % 16") + " + 15]",
                     2});
    cases.push_back({"buffer t: f32[H, 9, 11] grad\nscore_mod = score + t[h, " +
                         difference("x // 16 % 3") + " + 4, " + difference("x % 16") + " + 5]",
                     2});
    cases.push_back({"buffer t: f32[90, 45] grad\nscore_mod = score + t[" +
                     difference("(x + 8) // 24") + " + 44, " + difference("(x + 8) % 24") +
                     " + 23]"});
    // Two grids.
    cases.push_back(
        {"buffer t: f32[99] grad\nbuffer u: f32[H, 65] grad\nscore_mod = score + t[abs(" +
             difference("x % 40") + ")] + u[h, " + difference("x // 24") + " + 32]",
         2});
    int added = 0;
    for (const Grid& grid : cases)
        added += check(grid, below(2) == 0 ? 128 : 64, below(4) == 0, random);
    added += check(cases[0], 192, false, random);
    CHECK(added > 1000);
}

TEST_CASE("dS is summed over parts of diagonals of grids whose digits begin anywhere") {
    std::mt19937 random(test::fresh_seed());
    const auto below = test::draws_below(random);
    const auto image = [](const std::string& x, int w) {
        return "t[h, " + difference(x + " // " + number(w)) + " + 60, " +
               difference(x + " % " + number(w)) + " + 40]";
    };
    const std::string buffer = "buffer t: f32[H, 120, 90] grad\nscore_mod = score + ";
    std::vector<Grid> cases;
    for (const int w : {9 + 2 * below(4), 10 + 4 * below(3), 17 + 2 * below(30)})
        cases.push_back({buffer + image("x", w), 1, 1});
    // Positions shifted by tokens before an image, and with no part of them.
    const int w = 8 + below(30), tokens = 1 + below(6);
    const std::string shifted = image("(x - " + number(tokens) + ")", w);
    cases.push_back({buffer + shifted, 1, 1});
    cases.push_back({buffer + "where(q_idx < " + number(tokens) + " or kv_idx < " + number(tokens) +
                         ", 0, " + shifted + ")",
                     1, 1});
    cases.push_back({"buffer g: bool[B, Q_LEN]\n" + buffer +
                         "where(q_idx >= 3 and g[b, q_idx % Q_LEN], where(kv_idx % 5 == 2, 0, "
                         "2 * " +
                         shifted + "), 0)",
                     1, 1});
    // A volume, and axes of one image with offsets of two kinds.
    cases.push_back({"buffer t: f32[H, 15, 11, 31] grad\nscore_mod = score - t[h, " +
                         difference("x // 66") + " + 7, " + difference("x // 11 % 6") + " + 5, " +
                         difference("x % 11") + " + 10]",
                     2, 1});
    cases.push_back({"buffer r: f32[H, 60] grad\nbuffer c: f32[70] grad\nscore_mod = score + r[h, "
                     "min(abs(" +
                         difference("(x + 3) // 13") + "), 59)] + 0.5 * c[abs(" +
                         difference("(x + 16) % 13") + ")]",
                     2, 1});
    int added = 0;
    for (const Grid& grid : cases)
        added += check(grid, below(2) == 0 ? 128 : 64, below(4) == 0, random);
    added += check(cases[0], 192, false, random);
    CHECK(added > 1000);
}
