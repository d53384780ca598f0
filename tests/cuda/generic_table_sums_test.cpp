// Sums of dS over entries of tables in the generic backward: a block run by threads of the host
// over several tiles of queries, against sums element by element.
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <utility>
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
#include "passes/table_gradient.h"
#include "plan/plan.h"
#include "random_data.h"
#include "sm80/arguments.h"
#include "table_programs.h"

namespace {

using namespace flexc;

// d_scores: [tiles][queries of a tile][keys of a tile], bits of bf16.
using Function = void(const std::uint64_t* words, const ::sm80::KernelArguments*, int head,
                      int tiles, int first_key, const unsigned short* d_scores);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm80/backward_tiles.cuh"
#include "sm80/table_sums.cuh"
#include "sm90/warpgroup.cuh"
using namespace sm80;
struct DScores {
    unsigned base;
};
extern "C" void run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int tiles, int first_key, const unsigned short* d_scores) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    constexpr int kElements = mod::kQueryTile * mod::kKeyTile;
    // Where the kernel has them.
    constexpr BackwardKeyLayout kLayout = backward_key_layout(kSizes);
    static_assert(kLayout.bytes == mod::kSharedBytes && kLayout.bytes <= sizeof memory_of_block);
    run_block(32 * mod::kWarps, [&] {
        const Surroundings around{*attention, arguments, place,
                                  SequenceLength(*attention, place.b)};
        // What is added to weighted tables instead of dS is here twice as much.
        constexpr bool kHasWeighted = mod::TableGradients::kWeightedPartial >= 0;
        TableGradients sums(kLayout.table_sums);
        __syncthreads();
        for (int tile = 0; tile < tiles; ++tile) {
            __syncthreads();
            sums.take();
            for (int i = threadIdx.x; i < kElements; i += 32 * mod::kWarps) {
                const unsigned short bits = d_scores[tile * kElements + i];
                const float seen[1][1][4] = {{{flexc_to_float(flexc_bf16{bits}), 0, 0, 0}}};
                sums.update_largest(seen);
                const flexc_bf16 twice = flexc_from_float<flexc_bf16>(2 * seen[0][0][0]);
                const float doubled[1][1][4] = {{{flexc_to_float(twice), 0, 0, 0}}};
                unsigned char* const at = memory_of_block +
                                          i / mod::kKeyTile * TableTile::kPitch +
                                          i % mod::kKeyTile * 2;
                std::memcpy(at + kLayout.d_scores, &bits, 2);
                if constexpr (!kHasWeighted) continue;
                sums.template update_largest<1>(doubled);
                std::memcpy(at + kLayout.weighted, &twice, 2);
            }
            sums.publish_ranges(around, tile * mod::kQueryTile, first_key);
            __syncthreads();
            sums.add(around, DScores{kLayout.d_scores}, DScores{kLayout.weighted},
                     tile * mod::kQueryTile, first_key);
        }
        sums.flush(around, first_key);
    });
}
)";

plan::KernelConfig config_of(const passes::Mod& mod, int arch, int head_dim) {
    return plan::candidates({.kind = plan::KernelKind::backward_fused,
                             .arch = arch,
                             .dtype = DType::bf16,
                             .head_dim = head_dim,
                             .head_dim_v = head_dim,
                             .has_score_mod = true,
                             .gradients = {.few_entries = passes::count_few_entries(mod),
                                           .weighs_entries = passes::weighs_entries(mod)},
                             .generic_because = "this test is of it"})[0];
}

// How many entries got a gradient.
int check(const test::TableProgram& tables, std::mt19937& random) {
    CAPTURE(tables.text);
    const auto below = test::draws_below(random);
    // The smallest tiles, and the most and the least memory.
    constexpr int kHeadDim = 128;
    auto mod = test::lower_text(tables.text, kHeadDim, kHeadDim, true);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    REQUIRE(passes::count_few_entries(*mod) == tables.sums);
    passes::Mod summed = *mod; // as the kernel sums its gradients
    summed.gradients = passes::summed_by_entries(*mod);
    const plan::KernelConfig config = config_of(*mod, below(2) == 0 ? 86 : 80, kHeadDim);
    REQUIRE(config.family == "sm80");
    REQUIRE(config.storage.table_words > 0);
    const test::HostModule module(
        std::string(kText),
        test::emitted(*mod, config,
                      {.dtype = DType::bf16, .head_dim = kHeadDim, .head_dim_v = kHeadDim}));

    const int tiles = 3, keys = 20 + below(200);
    ::sm80::KernelArguments attention{};
    static_cast<AttentionArguments&>(attention) = test::random_attention(
        config.block.query_tile * (tiles - 1) + 1 + below(config.block.query_tile), keys, random);
    ir::Environment at = test::environment_of(attention, kHeadDim);
    const test::RandomData data(mod->program, at, random);
    test::HostArguments arguments(*mod, at);
    arguments.clear_gradients();

    test::TilePlace place =
        test::random_tile(attention, config.block.query_tile, config.block.key_tile, random);
    const int infinite = tables.is_finite ? -1 : below(60);
    std::vector<unsigned short> d_scores;
    std::vector<std::vector<double>> gradients = arguments.empty_gradients();
    std::vector<std::vector<int>> terms;
    for (int tile = 0; tile < tiles; ++tile) {
        place.first_query = tile * config.block.query_tile;
        test::TileOfDScores of_tile = test::tile_of_d_scores(
            summed, attention, at, place, std::move(gradients),
            [&](int row, int column) -> double {
                if (tile == 1 && row == infinite / 2 && column == infinite) return INFINITY;
                return test::random_real(random) * tables.scale;
            },
            [&](const passes::ReadGradient& gradient, const ir::Environment& of_element) {
                std::optional<double> factor = test::table_factor_at(*mod, gradient, of_element);
                if (factor && gradient.is_weighted) *factor *= 2;
                return factor;
            });
        d_scores.insert(d_scores.end(), of_tile.values.begin(), of_tile.values.end());
        gradients = std::move(of_tile.gradients);
        if (terms.empty()) terms.resize(gradients.size());
        for (std::size_t buffer = 0; buffer < gradients.size(); ++buffer) {
            terms[buffer].resize(gradients[buffer].size());
            for (std::size_t i = 0; i < terms[buffer].size(); ++i)
                terms[buffer][i] += of_tile.terms[buffer][i];
        }
    }
    module.function<Function>("run")(arguments.words(), &attention, place.head, tiles,
                                     place.first_key, d_scores.data());
    // Half a unit of 17 bits below the largest for each term, and roundings to float.
    const test::ComparedEntries entries =
        test::compare_entries(arguments, gradients, terms, tables.scale,
                              {.of_term = 0x1p-15, .more_terms = 3, .of_truth = 3e-6});
    CHECK(entries.wrong == 0);
    return entries.added;
}

} // namespace

TEST_CASE("generic kernels sum gradients of tables by entry") {
    std::mt19937 random(test::fresh_seed());
    int added = 0;
    for (const test::TableProgram& tables : test::table_programs(random))
        added += check(tables, random);
    // By distance.
    for (const char* const text :
         {"buffer t: f32[H, 300] grad\nscore_mod = score + t[h, q_idx - kv_idx + 20]",
          "buffer t: f32[H, 9000] grad\nbuffer a: f32[H]\nscore_mod = score - a[h] * t[h, q_idx - "
          "kv_idx + 4500]",
          "buffer t: f32[32, H] grad\nscore_mod = score + t[min(int(log(abs(q_idx - kv_idx) + 1) "
          "* 4), 31), h]",
          // Elements that add nothing.
          "buffer t: f32[H, 9] grad\nscore_mod = score + where(q_idx >= kv_idx, t[h, min(q_idx - "
          "kv_idx, 8)], 0)",
          "buffer doc: i32[KV_LEN]\nbuffer t: f32[H, 99] grad\nscore_mod = score - where("
          "doc[q_idx % KV_LEN] == doc[kv_idx], t[h, min(abs(q_idx - kv_idx), 98)], 0) * 2",
          // Elements that add something of their own.
          "buffer t: f32[H, 99] grad\nscore_mod = score * t[h, min(abs(q_idx - kv_idx), 98)]",
          "buffer t: f32[H, 5, 5] grad\nbuffer g: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\n"
          "score_mod = score * t[h, g[q_idx], k[kv_idx]]"})
        added += check({text}, random);
    // Tables of both kinds, of two and of one partial.
    for (const char* const text :
         {"buffer t: f32[H, 99] grad\nbuffer u: f32[H, 9] grad\nbuffer c: f32[Q_LEN]\nscore_mod = "
          "score + c[q_idx % Q_LEN] * t[h, min(abs(q_idx - kv_idx), 98)] + u[h, q_idx % 3 * 3 + "
          "kv_idx % 3]",
          "buffer a: f32[H, 64] grad\nbuffer c: f32[H, 64] grad\nscore_mod = score + where(q_idx "
          ">= kv_idx, a[h, min(q_idx - kv_idx, 63)], c[h, min(kv_idx - q_idx, 63)])"})
        added += check({.text = text, .sums = 2}, random);
    CHECK(added > 100);
}

TEST_CASE("tables of the same entries share sums in generic kernels") {
    std::mt19937 random(test::fresh_seed());
    const std::string kinds = "buffer g: i8[Q_LEN]\nbuffer k: i8[KV_LEN]\n";
    int added = 0;
    for (const test::TableProgram& tables : std::vector<test::TableProgram>{
             {"buffer a: f32[H, 4]\nbuffer t: f32[4, 99] grad\nscore_mod = score + sum(i in 0..4: "
              "a[h, i] * t[i, min(abs(q_idx - kv_idx), 98)])"},
             {"buffer t: f32[2, H, 99] grad\nbuffer u: f32[99] grad\nscore_mod = score * (t[0, h, "
              "min(abs(q_idx - kv_idx), 98)] - t[1, h, min(abs(q_idx - kv_idx), 98)]) + score * "
              "u[min(abs(q_idx - kv_idx), 98)]"},
             // Places outside, elements that are infinite, and more entries than there is room for.
             {kinds + "buffer t: f32[5, 5] grad\nbuffer u: f32[H, 5, 5] grad\nscore_mod = score + "
                      "t[g[q_idx], k[kv_idx]] - 2 * u[h, g[q_idx], k[kv_idx]]"},
             {kinds + "buffer t: f32[5, 5] grad\nbuffer u: f32[5, 5] grad\nscore_mod = score + "
                      "t[g[q_idx], k[kv_idx]] + u[g[q_idx], k[kv_idx]]",
              1, false},
             {"buffer t: f32[9000] grad\nbuffer u: f32[9000, 2] grad\nscore_mod = score + t[(q_idx "
              "* 37) % 4500 + (kv_idx * 29) % 4500] + u[(q_idx * 37) % 4500 + (kv_idx * 29) % "
              "4500, 1]"},
             // Two pairs.
             {"buffer t: f32[4, 99] grad\nscore_mod = score + t[0, min(abs(q_idx - kv_idx), 98)] + "
              "t[1, q_idx % 9 * 3 + kv_idx % 3] - t[2, min(abs(q_idx - kv_idx), 98)] - t[3, q_idx "
              "% 9 * 3 + kv_idx % 3]",
              1, true, 2},
             // Other extents, another choice, and a slice that may be outside share nothing.
             {"buffer t: f32[99] grad\nbuffer u: f32[98] grad\nscore_mod = score + "
              "t[min(abs(q_idx - kv_idx), 97)] + u[min(abs(q_idx - kv_idx), 97)]",
              1, true, 2},
             {"buffer t: f32[99] grad\nbuffer u: f32[99] grad\nscore_mod = score + "
              "t[min(abs(q_idx - kv_idx), 98)] + where(q_idx % 3 > 0, u[min(abs(q_idx - kv_idx), "
              "98)], 0)",
              1, true, 2},
             {"buffer t: f32[N, 99] grad\nbuffer u: f32[99] grad\nscore_mod = score + t[1, "
              "min(abs(q_idx - kv_idx), 98)] + u[min(abs(q_idx - kv_idx), 98)]",
              1, true, 2}})
        added += check(tables, random);
    CHECK(added > 100);
}
