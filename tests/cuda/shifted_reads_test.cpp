// Reads whose addresses are affine in q and kv: tiles of them as forward_sm90.cu copies these, and
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
