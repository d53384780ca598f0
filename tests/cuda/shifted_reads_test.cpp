// Reads whose addresses are affine in q and kv: tiles of them as Hopper's kernels copy these, and
// the logits of a warp, run by threads of the host, against the score mod of each element.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "cuda/emit.h"
#include "d_scores.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_arguments.h"
#include "host_module.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"
#include "plan/target_program.h"
#include "random_data.h"
#include "replaced.h"
#include "warp_logits.h"

namespace {

using namespace flexc;

// scores: [16 rows][keys of a tile], products that become logits as exponents. The tile's Reach as
// a number; -1 where a copy was not of 16 aligned bytes, or those that copy took the tile for
// another one than those that read it.
using Function = int(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                     int warp_row, int first_key, float* scores);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/forward_shifts.cuh"
#include "sm90/logits.cuh"
using namespace sm90;
constexpr unsigned kStage = 1024;
static_assert(kStage + kLayout.biases.bytes <= sizeof memory_of_block);
extern "C" int run(const unsigned long long* words, const KernelArguments* attention, int head,
                   int warp_row, int first_key, float* scores_of_warp) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    // No number, wherever nothing is copied to.
    for (unsigned at = 0; at < sizeof memory_of_block; at += 4) store_shared_word(at, ~0u);
    unaligned_copies = 0;
    const int first_row = warp_row / mod::kQueryTile * mod::kQueryTile;
    const ShiftedHeads<> heads(*attention, arguments, place);
    bool has_ends = false;
    if constexpr (kHasShiftedEnds) {
        const ShiftedEnds<kShiftThreads> ends(*attention, heads, first_row,
                                             1 / attention->scale);
        has_ends = ends.are_beyond(first_key);
        for (int thread = 0; has_ends && thread < kShiftThreads; ++thread)
            ends.copy(thread, first_key, kStage, [] {});
    }
    for (int thread = 0; !has_ends && thread < kShiftThreads; ++thread)
        copy_shifts<kShiftThreads>(*attention, heads, first_row, first_key, kStage, thread);
    int reach = 0;
    run_warp([&](int lane) {
        const SequenceLength length(*attention, place.b);
        Logits logits(*attention, arguments, place, length, warp_row, lane);
        const auto at = [&](int i) {
            const int row = lane / 4 + 8 * fragment_row(i);
            return row * mod::kKeyTile + lane % 4 * 2 + fragment_column(i);
        };
        Scores scores;
        logits.find_hidden(first_key, false);
        logits.find_reach_of_shifts(first_key);
        logits.prepare(first_key);
        if constexpr (Logits::kStartsWithBias) {
            logits.start(scores, kStage, first_key);
            for (int i = 0; i < kScores; ++i) scores[i] += scores_of_warp[at(i)];
        } else {
            logits.use_shifts(kStage);
            for (int i = 0; i < kScores; ++i) scores[i] = scores_of_warp[at(i)];
        }
        logits.apply(scores, first_key);
        for (int i = 0; i < kScores; ++i)
            scores_of_warp[at(i)] =
                logits.exponent(scores[i] + logits.offset(fragment_row(i), 0));
        if (lane == 0) reach = static_cast<int>(logits.shifts().reach());
    });
    return unaligned_copies == 0 && has_ends == (reach == 1) ? reach : -1;
}
)";

struct Case {
    std::string text;
    std::size_t reads = 1;
    int head_dim = 64;
    std::size_t least_tiles = reads; // have room
};

// Which of Reach tiles had.
std::vector<int> check(const Case& one, std::mt19937& random, int rounds) {
    CAPTURE(one.text);
    const auto below = test::draws_below(random);
    auto mod = test::lower_text(one.text, one.head_dim, one.head_dim, false);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    CompileOptions options;
    options.dtype = DType::bf16;
    options.head_dim = options.head_dim_v = one.head_dim;
    const plan::TargetProgram program(*mod, options, *plan::target_of("sm_90a"));
    const plan::KernelRequest request = program.request(plan::KernelKind::forward);
    REQUIRE(!request.terms.with_shifts.empty());
    CHECK(request.terms.with_shifts.front().tiles.size() == one.reads);
    const plan::KernelConfig config = plan::candidates(request).front();
    REQUIRE(plan::sm90::forward_of(config) != nullptr);
    CHECK(config.decomposition.shifted_reads >= static_cast<int>(one.least_tiles));
    const passes::DecomposedMod& decomposed = program.decomposed(config.decomposition);
    const test::HostModule module(
        std::string(kText),
        cuda::emit_mod(decomposed.mod, decomposed.parts, config, {.dtype = DType::bf16}));
    std::vector<int> reaches;
    for (int round = 0; round < rounds; ++round) {
        const ::sm90::KernelArguments attention =
            test::random_attention(1 + below(450), 1 + below(450), random);
        ir::Environment at = test::environment_of(attention, one.head_dim);
        const test::RandomData data(mod->program, at, random);
        const auto rows = below(4) == 0 ? std::optional<test::HostArguments::Rows>()
                                        : test::HostArguments::Rows{below(9), below(9)};
        const test::HostArguments arguments(decomposed.mod, at, rows);

        const test::WarpProducts products(attention, config.block.key_tile,
                                          plan::sm90::forward_of(config)->key_step, random);
        std::vector<float> logits = products.values;
        reaches.push_back(module.function<Function>("run")(arguments.words(), &attention,
                                                           products.head, products.row,
                                                           products.first_key, logits.data()));
        CHECK(products.count_wrong(logits, *mod, attention, at) == 0);
    }
    return reaches;
}

std::string name_of(int dtype) { return dtype == 0 ? "f32" : dtype == 1 ? "bf16" : "f16"; }

// A buffer r_i and what is added of it.
struct Read {
    std::string buffer, term;
};
Read random_read(int i, std::mt19937& random) {
    const auto below = test::draws_below(random);
    const bool by_key = below(2) == 0;
    const std::string line = by_key ? "kv_idx" : "q_idx";
    std::string index = below(2) == 0 ? "q_idx - kv_idx" : "kv_idx - q_idx";
    const int entries = 3 + below(below(2) == 0 ? 40 : 600);
    const int shift = below(entries + 1);
    const auto number = [](int x) { return std::to_string(x); };
    switch (below(6)) {
    case 0: // as long as all distances
        index += " + " + std::string(below(2) == 0 ? "Q_LEN" : "KV_LEN") + " - " + number(below(3));
        break;
    case 1: index += " + " + number(shift); break;
    case 2: index = "clamp(" + index + " + " + number(shift) + ", 0, NUMBER - 1)"; break;
    case 3: index = "NUMBER - 1 - clamp(" + index + ", 0, NUMBER - 1)"; break;
    case 4:
        index = "min(max(" + index + ", -" + number(shift) + "), NUMBER - 1 - " + number(shift) +
                ") + " + number(shift);
        break;
    default: index = by_key ? "q_idx + " + number(shift) : "kv_idx - " + number(shift); break;
    }
    for (std::size_t at = index.find("NUMBER"); at != std::string::npos; at = index.find("NUMBER"))
        index.replace(at, 6, number(entries));
    const std::string extents[] = {"B, H", "H", "B", "", "H_KV"};
    const std::string indices[] = {"b, h, ", "h, ", "b, ", "", "h_kv, "};
    const int heads = below(5);
    std::string buffer = "buffer r" + number(i) + ": " + name_of(below(3)) + "[" + extents[heads];
    if (heads != 3) buffer += ", ";
    buffer += std::string(by_key ? "KV_LEN, " : "Q_LEN, ") + number(entries) + "]\n";
    return {buffer, "r" + number(i) + "[" + indices[heads] + line + ", " + index + "]"};
}

} // namespace

TEST_CASE("logits of shifted reads are those of the mod") {
    std::mt19937 random(20261125);
    const auto reaches = [&](const Case& one, int rounds = 12) {
        std::vector<int> seen = check(one, random, rounds);
        std::ranges::sort(seen);
        const auto [end, last] = std::ranges::unique(seen);
        seen.erase(end, last);
        return seen;
    };
    // Transformer-XL, by rows of either direction; out of the table, nothing is added.
    CHECK(reaches({"buffer r: bf16[B, H, Q_LEN, 600]\nmask_mod = q_idx >= kv_idx\n"
                   "score_mod = score + r[b, h, q_idx, q_idx - kv_idx]"},
                  24) == std::vector{0, 2});
    CHECK(reaches({.text = "buffer r: f32[B, H, Q_LEN, 400]\nscore_mod = score + r[b, h, q_idx, "
                           "kv_idx - q_idx + Q_LEN - 1]",
                   .head_dim = 128},
                  24) == std::vector{0, 2});
    // DeBERTa.
    CHECK(reaches({.text = "buffer c: bf16[B, H, Q_LEN, 256]\nbuffer p: bf16[B, H, KV_LEN, 256]\n"
                           "score_mod = score + c[b, h, q_idx, clamp(q_idx - kv_idx + 128, 0, 255)]"
                           " + p[b, h, kv_idx, clamp(q_idx - kv_idx + 128, 0, 255)]",
                   .reads = 2,
                   .head_dim = 128},
                  40) == std::vector{0, 1, 2});
    CHECK(reaches({"buffer p: f16[H, KV_LEN, 20]\nscore_mod = score + p[h, kv_idx, 19 - "
                   "clamp(kv_idx - q_idx + 7, 0, 19)]"},
                  24) == std::vector{1, 2});
    // Within what is no sum, or has more than products and biases; a dense bias beside.
    reaches({"buffer p: f16[H, KV_LEN, 20]\nscore_mod = 10 * tanh((score + p[h, kv_idx, "
             "clamp(kv_idx - q_idx + 7, 0, 19)]) / 10)"});
    // Beyond clamps of two ranges: sums of multiples, and what is none.
    const auto of_ranges = [](const std::string& score) {
        const std::string distance = ", clamp(q_idx - kv_idx + 20, 0, 40)]";
        return Case{.text =
                        "buffer c: bf16[B, H, Q_LEN, 41]\nbuffer p: f16[H, KV_LEN, 41]\n"
                        "buffer n: f32[KV_LEN, 9]\nscore_mod = " +
                        test::replaced(
                            test::replaced(test::replaced(score, "C", "c[b, h, q_idx" + distance),
                                           "P", "p[h, kv_idx" + distance),
                            "N", "n[kv_idx, min(max(kv_idx - q_idx, -8), 0) + 8]"),
                    .reads = static_cast<std::size_t>(score.find('N') != std::string::npos) + 2};
    };
    for (const std::string score : {"score + 0.25 * (C - P)", "score - C / 3 + P - C * 0.5 - N",
                                    "score + C * P", "score + tanh(C) + exp(P)"}) {
        const std::vector<int> seen = reaches(of_ranges(score), 24);
        CHECK(std::ranges::find(seen, 1) != seen.end());
        CHECK(std::ranges::find(seen, -1) == seen.end());
    }
    reaches({"buffer p: f32[Q_LEN, KV_LEN]\nbuffer a: f32[H]\nscore_mod = score * a[h] + 2 * "
             "sin(p[q_idx, q_idx - kv_idx])"});
    reaches({.text = "buffer p: f32[Q_LEN, KV_LEN]\nbuffer d: bf16[Q_LEN, KV_LEN]\nscore_mod = "
                     "score * d[q_idx, kv_idx] + p[q_idx, q_idx - kv_idx]",
             .reads = 2});
    reaches({"buffer p: bf16[Q_LEN, 31]\nscore_mod = abs(score) + p[q_idx, q_idx - kv_idx]"});
    // Tiles of all three have no room: narrow elements are first to have one.
    reaches({.text =
                 "buffer p: f32[Q_LEN, 31]\nbuffer r: f32[KV_LEN, 40]\nbuffer s: f16[Q_LEN, 50]\n"
                 "score_mod = score + p[q_idx, q_idx - kv_idx] + r[kv_idx, kv_idx - q_idx] + "
                 "s[q_idx, kv_idx - q_idx + 7]",
             .reads = 3,
             .head_dim = 128,
             .least_tiles = 2});
    // Of five, four.
    reaches({.text =
                 "buffer p: f32[Q_LEN, 31]\nbuffer r: f16[KV_LEN, 40]\nscore_mod = score + "
                 "p[q_idx, q_idx - kv_idx] + r[kv_idx, kv_idx - q_idx] + p[q_idx, kv_idx - q_idx] "
                 "+ r[kv_idx, kv_idx - q_idx + 3] + p[q_idx, q_idx - kv_idx + 9]",
             .reads = 4});
}

TEST_CASE("random shifted reads") {
    std::mt19937 random(test::fresh_seed());
    int programs = 0;
    while (programs < 8) {
        const std::size_t reads = 1 + random() % 3;
        std::string text, score = "score_mod = score";
        bool is_any_shifted = false;
        for (std::size_t i = 0; i < reads; ++i) {
            const Read read = random_read(static_cast<int>(i), random);
            text += read.buffer;
            const std::string_view factors[] = {" + ", " + ", " - ", " + 0.3 * ", " - 2 * "};
            score += std::string(factors[random() % 5]) + read.term;
            is_any_shifted |= read.term.find("- kv") != std::string::npos ||
                              read.term.find("- q") != std::string::npos;
        }
        if (random() % 2 == 0) text += "mask_mod = q_idx >= kv_idx\n";
        if (!is_any_shifted) continue;
        const int head_dim = random() % 2 == 0 ? 64 : 128;
        check({.text = text + score,
               .reads = reads,
               .head_dim = head_dim,
               .least_tiles = head_dim == 64 ? reads : std::min<std::size_t>(reads, 2)},
              random, 6);
        ++programs;
    }
}

namespace {

// biases: [queries of a tile][keys of a tile], which elements read in the tile's copy. Returns the
// number of copies that were not of 16 aligned bytes.
using BackwardFunction = int(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                             int first_row, int first_key, float* biases);

constexpr std::string_view kBackwardText = R"(
#include "mod.cuh"
#include "sm90/backward_dense_bias.cuh"
#include "sm90/backward_elements.cuh"
using namespace sm90;
unsigned char shared_memory[1];
extern "C" int run(const unsigned long long* words, const KernelArguments* attention, int head,
                   int first_row, int first_key, float* biases) {
    static_assert(kBiasIsShifted);
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    constexpr unsigned kStage = 1024;
    // No number, wherever nothing is copied to.
    for (unsigned at = 0; at < sizeof memory_of_block; at += 4) store_shared_word(at, ~0u);
    unaligned_copies = 0;
    run_warp([&](int) {
        const CopiedBias::Source source(*attention, arguments, place, first_key);
        source.copy(*attention, first_row, first_key, kStage, Barrier{0});
    });
    for (unsigned at = kStage + kBiasTileBytes; at < sizeof memory_of_block; at += 4)
        if (load_shared_word(at) != ~0u) return -1;
    for (int warp = 0; warp < 8; ++warp)
        run_warp([&](int lane) {
            TileBiases own(*attention, arguments, place);
            own.use(kStage, 0, 16 * warp);
            for (int pair = 0; pair < mod::kQueryTile / 8; ++pair) {
                const BiasPair of_pair = own.load(pair);
                for (int side = 0; side < 2; ++side)
                    for (int key = 0; key < 2; ++key)
                        biases[(lane % 4 * 2 + query_of(2 * pair + side)) * mod::kKeyTile +
                               16 * warp + lane / 4 + 8 * key] = of_pair.of[side][key];
            }
        });
    return unaligned_copies;
}
)";

// Tiles of a program that adds what it reads to the score. Returns how many tiles had elements
// outside of the buffer.
int check_backward(const std::string& text, int head_dim, std::mt19937& random, int rounds) {
    CAPTURE(text);
    CAPTURE(head_dim);
    const auto below = test::draws_below(random);
    const auto mod = test::lower_text(text, head_dim, head_dim, true);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    CompileOptions options;
    options.dtype = DType::bf16;
    options.head_dim = options.head_dim_v = head_dim;
    options.backward = true;
    const plan::TargetProgram program(*mod, options, *plan::target_of("sm_90a"));
    const plan::KernelRequest request = program.request(plan::KernelKind::backward_fused);
    CHECK(request.bias.is_shifted);
    const plan::KernelConfig config = plan::candidates(request).front();
    REQUIRE(config.storage.bias_stages > 0);
    const test::HostModule module(
        std::string(kBackwardText),
        cuda::emit_mod(*mod, {}, config,
                       {.dtype = DType::bf16, .head_dim = head_dim, .head_dim_v = head_dim}));
    int outside = 0;
    for (int round = 0; round < rounds; ++round) {
        const ::sm90::KernelArguments attention =
            test::random_attention(1 + below(450), 1 + below(450), random);
        ir::Environment at = test::environment_of(attention, head_dim);
        while (at.sizes.size() < mod->program.sizes.size())
            at.sizes.push_back(1 + below(700));
        const test::RandomData data(mod->program, at, random);
        const auto strides = below(4) == 0 ? std::optional<test::HostArguments::Rows>()
                                           : test::HostArguments::Rows{below(9), below(9)};
        const test::HostArguments arguments(*mod, at, strides);
        const int rows = config.block.query_tile, keys = config.block.key_tile;
        const int head = below(attention.batch * attention.heads);
        const int first_row = rows * below((attention.q_len - 1) / rows + 1);
        const int first_key = keys * below((attention.kv_len - 1) / keys + 1);
        std::vector<float> biases(static_cast<std::size_t>(rows * keys));
        CHECK(module.function<BackwardFunction>("run")(arguments.words(), &attention, head,
                                                       first_row, first_key, biases.data()) == 0);
        at.b = head / attention.heads;
        at.h = head % attention.heads;
        at.h_kv = at.h / (attention.heads / attention.kv_heads);
        int wrong = 0, zeros = 0;
        for (int i = 0; i < rows * keys; ++i) {
            const int q = first_row + i / keys, kv = first_key + i % keys;
            if (q >= attention.q_len || kv >= attention.kv_len) continue;
            at.q_idx = q + attention.q_offset;
            at.kv_idx = kv + attention.kv_offset;
            const auto expected =
                static_cast<float>(ir::evaluate_real(mod->program, mod->score, at));
            wrong += expected != biases[static_cast<std::size_t>(i)];
            zeros += expected == 0;
        }
        CHECK(wrong == 0);
        outside += zeros > 0;
    }
    return outside;
}

} // namespace

TEST_CASE("a backward copies tiles of a shifted read, with zeros outside of the buffer") {
    std::mt19937 random(test::fresh_seed());
    CHECK(check_backward("buffer t: bf16[B, H, Q_LEN, KV_LEN] grad\nscore_mod = score + "
                         "t[b, h, q_idx, q_idx - kv_idx]",
                         128, random, 12) > 0);
    CHECK(check_backward("buffer t: f32[B, H, Q_LEN, 400]\nscore_mod = score + t[b, h, q_idx, "
                         "kv_idx - q_idx + Q_LEN - 1]",
                         64, random, 12) > 0);
    check_backward("buffer t: f16[H, KV_LEN, 500] grad\nscore_mod = score + t[h, kv_idx, q_idx - "
                   "kv_idx + 200]",
                   64, random, 12);
    const auto number = [&](int below) { return std::to_string(random() % unsigned(below)); };
    for (int program = 0; program < 4; ++program) {
        const bool by_key = random() % 2 == 0, descends = random() % 2 == 0;
        const char* const line = by_key ? "kv_idx" : "q_idx";
        const char* const distance = descends ? "q_idx - kv_idx" : "kv_idx - q_idx";
        const std::string type = name_of(static_cast<int>(random() % 3));
        check_backward("buffer t: " + type + "[H, " + (by_key ? "KV_LEN, " : "Q_LEN, ") +
                           std::to_string(9 + random() % 600) + "]" +
                           (random() % 2 == 0 ? " grad" : "") + "\nscore_mod = score + t[h, " +
                           line + ", " + distance + " + " + number(300) + "]",
                       type == "f32" ? 64 : 128, random, 6);
    }
}
