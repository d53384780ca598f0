// Sums of dS over distances q - kv, as Hopper's backward finds them in tiles that follow each
// other: run on the host by the lanes of a warp, against sums element by element.
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/arguments.h"
#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_module.h"
#include "plan/plan.h"
#include "support/floats.h"

namespace {

using namespace flexc;

// d_scores: [tile][query][key], bits of bf16, of `tiles` from first_tile on. sums: for each
// distance from 1 - kv_len on.
using Function = void(const AttentionArguments*, int first_tile, int tiles, int first_key,
                      const unsigned short* d_scores, float* sums);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/gradients/diagonal_sums.cuh"
using namespace sm90;
unsigned char shared_memory[1];
extern "C" void run(const AttentionArguments* attention, int first_tile, int tiles, int first_key,
                    const unsigned short* d_scores, float* sums) {
    constexpr unsigned kTiles = 4096;
    for (int tile = 0; tile < tiles; ++tile)
        store_tile(kTiles + tile * kDScoresBytes, mod::kQueryTile, mod::kKeyTile,
                   d_scores + tile * mod::kQueryTile * mod::kKeyTile);
    const int count = attention->q_len + attention->kv_len - 1;
    std::vector<DistanceSum> found(count);
    for (const bool is_upper : {false, true})
        run_warp([&](int) {
            Strip strip(*attention, found.data() + attention->kv_len - 1, is_upper);
            for (int i = 0; i < tiles; ++i) {
                const int tile = mod::kDeterministic ? tiles - 1 - i : i;
                strip.add_tile(kTiles + tile * kDScoresBytes,
                               (first_tile + tile) * mod::kQueryTile - first_key);
            }
            strip.flush();
        });
    for (int i = 0; i < count; ++i)
        sums[i] = flexc_value(found[i]);
}
)";

void check(int head_dim, bool is_deterministic, std::mt19937& random) {
    CAPTURE(head_dim);
    CAPTURE(is_deterministic);
    const auto below = test::draws_below(random);
    const auto mod =
        test::lower_text("buffer t: f32[N] grad\nscore_mod = score + t[q_idx - kv_idx + KV_LEN]",
                         head_dim, head_dim, true);
    REQUIRE(mod.has_value());
    const plan::KernelConfig config = plan::candidates({.kind = plan::KernelKind::backward_fused,
                                                        .arch = 90,
                                                        .dtype = DType::bf16,
                                                        .head_dim = head_dim,
                                                        .head_dim_v = head_dim,
                                                        .has_score_mod = true,
                                                        .gradients = {.by_distance = true},
                                                        .deterministic = is_deterministic})
                                          .front();
    REQUIRE(config.family == "sm90");
    REQUIRE(config.block.query_tile == 64);
    const test::HostModule module(
        std::string(kText),
        test::emitted(*mod, config,
                      {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim}));

    for (int tiles = 1; tiles <= 5; ++tiles) {
        CAPTURE(tiles);
        AttentionArguments attention{};
        attention.q_len = 64 * 5 + below(64);
        attention.kv_len = 130 + below(200);
        const int first_tile = below(7 - tiles);
        const int first_key =
            config.block.key_tile * below(attention.kv_len / config.block.key_tile + 1);
        std::vector<double> expected(
            static_cast<std::size_t>(attention.q_len + attention.kv_len - 1));
        std::vector<unsigned short> d_scores;
        for (int q = 64 * first_tile; q < 64 * (first_tile + tiles); ++q)
            for (int key = first_key; key < first_key + config.block.key_tile; ++key) {
                const bool exists = q < attention.q_len && key < attention.kv_len;
                const float value =
                    exists ? static_cast<float>(below(255) - 127) : 0; // exact in bf16
                d_scores.push_back(support::Bf16::narrow(value));
                if (exists)
                    expected[static_cast<std::size_t>(q - key + attention.kv_len - 1)] +=
                        static_cast<double>(value);
            }
        std::vector<float> sums(expected.size(), -1);
        module.function<Function>("run")(&attention, first_tile, tiles, first_key, d_scores.data(),
                                         sums.data());
        int wrong = 0;
        for (std::size_t i = 0; i < sums.size(); ++i)
            if (static_cast<double>(sums[i]) != expected[i]) ++wrong; // small integers
        CHECK(wrong == 0);
    }
}

} // namespace

TEST_CASE("dS is summed over distances, from one tile to the next") {
    std::mt19937 random(test::fresh_seed());
    for (const int head_dim : {64, 128})
        for (const bool is_deterministic : {false, true})
            check(head_dim, is_deterministic, random);
    check(256, false, random); // 64 keys
}
