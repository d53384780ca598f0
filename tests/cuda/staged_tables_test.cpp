// Tables that forward_sm90.cu keeps in shared memory: their copies and the logits of a warp, run by
// 32 threads of the host, against the score mod of each element.
#include <algorithm>
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
#include "passes/aligned_table.h"
#include "passes/decompose.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"
#include "random_data.h"
#include "support/text.h"
#include "warp_logits.h"

namespace {

using namespace flexc;

// scores: [16 rows][keys of a tile], products that become logits as exponents. What the tile's
// elements read from: 0 where no element is looked at, 1 where each is, 2 for memory, 4 where some
// use nothing of what is read; -1 where an element read what is not of the tables.
using Function = int(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                     int warp_row, int first_key, float* scores);

constexpr std::string_view kText = R"(
#include "mod.cuh"
#include "sm90/tabulate_keys.cuh"
#include "sm90/forward_tables.cuh"
#include "sm90/logits.cuh"
using namespace sm90;
constexpr unsigned kTables = 1 << 17;
extern "C" long long count_tabulated(const KernelArguments* attention) {
    return vector_heads(*attention) * mod::TabulatedVectors::kByKey * padded(attention->kv_len);
}
extern "C" void tabulate(const unsigned long long* words, const KernelArguments* attention) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    if (mod::TabulatedVectors::kByKey == 0) return;
    for (int block = 0;
         block < vector_heads(*attention) * (padded(attention->kv_len) / kTabulatedStep); ++block)
        for (threadIdx.x = 0; threadIdx.x < kTabulatedStep; ++threadIdx.x)
            tabulate_keys(*attention, arguments, block);
}
extern "C" int run(const unsigned long long* words, const KernelArguments* attention, int head,
                   int warp_row, int first_key, float* scores_of_warp) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    for (unsigned at = kTables; at < sizeof memory_of_block; at += 4) store_shared_word(at, ~0u);
    visit_element(*attention, arguments, place, 0, 0, [&](const mod::At& at) {
        if (tables_have_room(at))
            for (int thread = 0; thread < kTableThreads; ++thread)
                copy_tables(at, true, 0, 0, kTables, 1 / attention->scale, thread);
    });
    unsigned char* to = memory_of_block;
    const int vectors = vector_head(*attention, place.b, place.h);
    for (int i = 0; i < mod::TabulatedVectors::kByKey; ++i, to += kTabulatedSlices.key_bytes)
        std::memcpy(to, key_vector(*attention, vectors, i) + first_key, kTabulatedSlices.key_bytes);
    // Aligned tiles read more, and use nothing of that.
    first_of_tables = mod::StagedTables::kAreAligned ? 0 : kTables;
    end_of_tables = kTables + 4 * mod::kSizes.table_words;
    reads_outside_tables = 0;
    int source = -1;
    run_warp([&](int lane) {
        const SequenceLength length(*attention, place.b);
        Logits logits(*attention, arguments, place, length, warp_row, lane, kTables);
        const auto at = [&](int i) {
            const int row = lane / 4 + 8 * fragment_row(i);
            return row * mod::kKeyTile + lane % 4 * 2 + fragment_column(i);
        };
        Scores scores;
        for (int i = 0; i < kScores; ++i) scores[i] = scores_of_warp[at(i)];
        logits.find_tabulated(0, warp_row % mod::kQueryTile + lane / 4);
        if (Logits::kStartsWithBias) {
            Scores started;
            logits.start(started, 0, first_key);
            for (int i = 0; i < kScores; ++i) scores[i] += started[i];
        }
        logits.find_hidden(first_key, false);
        logits.prepare(first_key);
        logits.apply(scores, first_key);
        for (int i = 0; i < kScores; ++i) scores_of_warp[at(i)] = logits.exponent(scores[i]);
        if (lane == 0)
            logits.tables().with_source(
                [&](auto of) { source = static_cast<int>(decltype(of)::kSource); });
    });
    return reads_outside_tables == 0 ? source : -1;
}
)";

struct Case {
    std::string text;
    std::size_t tables = 1;
    std::vector<int> sources = {0};       // that tiles may have
    std::vector<std::int64_t> sizes = {}; // of the program's own
    int aligned_keys = 0;                 // of a tile, where its tables are aligned
    int key_step = 0;                     // to the next one, where that is less
    int step() const { return key_step == 0 ? aligned_keys : key_step; }
};

// Of six tiles, those where no element's place is looked at.
std::ptrdiff_t check(const Case& one, std::mt19937& random) {
    CAPTURE(one.text);
    const auto below = test::draws_below(random);
    auto mod = test::lower_text(one.text, 64, 64, false);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    const bool aligns = one.aligned_keys != 0;
    const passes::DecomposedMod decomposed = aligns
                                                 ? passes::decompose_score_with_aligned_tables(*mod)
                                                 : passes::decompose_score_with_tables(*mod);
    plan::KernelRequest request{.arch = 90, .dtype = DType::bf16, .has_score_mod = true};
    (aligns ? request.terms.with_aligned_tables.tabulated : request.terms.with_tables.tabulated) =
        passes::tabulated_values(decomposed);
    for (const passes::StagedTable& table : decomposed.parts.staged.tables)
        request.terms.with_tables.entries.push_back(table.entries);
    if (aligns) request.terms.with_aligned_tables.tiles = {{one.aligned_keys, one.step()}};
    REQUIRE(request.terms.with_tables.entries.size() == one.tables);
    const plan::KernelConfig config = plan::candidates(request).front();
    REQUIRE(config.decomposition.stages_tables());
    REQUIRE((config.decomposition.of == plan::Decomposition::Of::with_aligned_tables) == aligns);
    const test::HostModule module(std::string(kText),
                                  test::emitted(*mod, config, {.dtype = DType::bf16}));
    std::vector<int> seen_sources;
    for (int round = 0; round < 6; ++round) {
        ::sm90::KernelArguments attention =
            test::random_attention(90 + below(200), 130 + below(200), random);
        if (aligns && round % 3 != 0) {
            attention.q_offset -= attention.q_offset % passes::AlignedTable::kRows;
            attention.kv_offset -= attention.kv_offset % one.step();
        }
        ir::Environment at = test::environment_of(attention, 64);
        at.sizes.insert(at.sizes.end(), one.sizes.begin(), one.sizes.end());
        const test::RandomData data(mod->program, at, random);
        const test::HostArguments arguments(decomposed.mod, at);
        std::vector<float> key_values(
            static_cast<std::size_t>(module.function<long long(const ::sm90::KernelArguments*)>(
                "count_tabulated")(&attention)));
        attention.key_values = key_values.data();
        module.function<void(const std::uint64_t*, const ::sm90::KernelArguments*)>("tabulate")(
            arguments.words(), &attention);

        const test::WarpProducts products(attention, config.block.key_tile,
                                          plan::sm90::forward_of(config)->key_step, random);
        std::vector<float> logits = products.values;
        seen_sources.push_back(module.function<Function>("run")(arguments.words(), &attention,
                                                                products.head, products.row,
                                                                products.first_key, logits.data()));
        CHECK(products.count_wrong(logits, *mod, attention, at) == 0);
    }
    for (const int source : seen_sources)
        CHECK(std::ranges::find(one.sources, source) != one.sources.end());
    return std::ranges::count(seen_sources, 0) + std::ranges::count(seen_sources, 4);
}

} // namespace

TEST_CASE("logits of tables in shared memory are those of the mod") {
    std::mt19937 random(20261124);
    const std::string kinds = "buffer g: i32[Q_LEN]\nbuffer k: i32[B, KV_LEN]\n";
    check({"buffer t: f32[H, 81, 13]\nscore_mod = score + t[h, q_idx // 7 - kv_idx // 7 + 40, "
           "q_idx % 7 - kv_idx % 7 + 6]",
           1,
           {0, 1}},
          random);
    // What late queries give alone is beyond the slice, and keys past the end give nothing.
    check({"buffer t: f32[H, 33, 31]\nscore_mod = score + t[h, q_idx // 16 - kv_idx // 16 + 16, "
           "q_idx % 16 - kv_idx % 16 + 15]",
           1,
           {0, 1}},
          random);
    // Few tiles are inside of it.
    check({"buffer t: f32[H, 3, 13]\nscore_mod = score + t[h, q_idx // 70 - kv_idx // 70 + 1, "
           "q_idx % 7 - kv_idx % 7 + 6]",
           1,
           {0, 1}},
          random);
    check({"buffer t: bf16[H, 9, 5, 7]\nscore_mod = score * 0.5 - t[h, clamp(q_idx // 12 - kv_idx "
           "// 12 + 4, 0, 8), q_idx // 4 % 3 - kv_idx // 4 % 3 + 2, q_idx % 4 - kv_idx % 4 + 3]",
           1,
           {0}},
          random);
    check({kinds + "buffer t: f32[5, 5, H]\nscore_mod = score + t[g[q_idx], k[b, kv_idx], h]",
           1,
           {0}},
          random);
    // Numbers 0 to 4 of which some are outside.
    check({"buffer g: i16[Q_LEN]\nbuffer k: u8[B, KV_LEN]\nbuffer t: f32[B, 40]\nscore_mod = "
           "score + t[b, g[q_idx] * 7 + 3 * k[b, kv_idx]]",
           1,
           {0, 1}},
          random);
    // An index of 64 bits.
    check({kinds + "buffer t: f32[B, 40]\nscore_mod = score + t[b, g[q_idx] * 7 + 3 * k[b, "
                   "kv_idx] - 5]",
           1,
           {0}},
          random);
    check({"buffer t: f32[30]\nbuffer d: i8[B, Q_LEN, KV_LEN]\nscore_mod = score + t[d[b, q_idx, "
           "kv_idx] * 9 - 2]",
           1,
           {0}},
          random);
    // Buckets, many of whose logarithms are near to whole numbers.
    check({"buffer t: f32[24]\nbuffer ts: f32[B, 600]\nscore_mod = score + t[clamp(int(log(max("
           "abs(ts[b, q_idx] - ts[b, kv_idx]) * 16, 0.5)) / 0.693147), -2, 20) + 2]",
           1,
           {0}},
          random);
    // Roots, by which products are added to what is read.
    check({"buffer w: f32[64, H]\nbuffer ts: f32[B, 600]\nscore_mod = score + w[min(int(sqrt(abs("
           "ts[b, q_idx] - ts[b, kv_idx]) * 300)), 63), h]\nmask_mod = q_idx >= kv_idx"},
          random);
    check({"buffer w: bf16[H, 30]\nbuffer n: i32[B, 600]\nbuffer u: f32[7]\nscore_mod = score - 2 "
           "* w[h, min(abs(n[b, q_idx] * 9 - n[b, kv_idx] * 7), 29)] + where(kv_idx % 3 == 1, 0.5, "
           "u[int(sqrt(abs(n[b, q_idx] - n[b, kv_idx]))) % 7])",
           2},
          random);
    // A class token.
    check({"buffer t: f32[H, 64]\nscore_mod = score + t[h, where(q_idx == 0 or kv_idx == 0, 63, "
           "abs(q_idx // 9 - kv_idx // 9))]"},
          random);
}

TEST_CASE("logits of tables whose addresses are split for most queries and keys") {
    std::mt19937 random(test::fresh_seed());
    const auto below = test::draws_below(random);
    const auto check_piece = [&](const std::string& text, std::size_t tables = 1) {
        return check({text, tables, {0, 1}}, random);
    };
    std::ptrdiff_t split = 0; // tiles
    // An image behind or before some tokens.
    for (int i = 0; i < 8; ++i) {
        const int width = 5 + below(16), height = 2 + below(40), tokens = 1 + below(3);
        const int wide = 2 * width - 1, entries = (2 * height - 1) * wide;
        const bool are_last = i % 4 == 3;
        const std::string is_token = are_last ? " >= 300" : formatted(" < {}", tokens),
                          q = are_last ? "q_idx" : formatted("(q_idx - {})", tokens),
                          kv = are_last ? "kv_idx" : formatted("(kv_idx - {})", tokens);
        split += check_piece(formatted(
            "buffer t: {}[{}]\nscore_mod = score * {} + t[h % 2, where(q_idx{}, where(kv_idx{}, "
            "{}, "
            "{}), where(kv_idx{}, {}, ({} // {} - {} // {} + {}) * {} + {} % {} - {} % {} + {}))]",
            i % 2 == 0 ? "f32" : "bf16", formatted("2, {}", entries + 3), 1 + below(2), is_token,
            is_token, entries, entries + 1, is_token, entries + 2, q, width, kv, width, height - 1,
            wide, q, width, kv, width, width - 1));
    }
    CHECK(split > 0);
    const std::string kinds = "buffer g: i32[Q_LEN]\nbuffer k: i32[B, KV_LEN]\n";
    // Nothing is left of a choice of the query alone, however often it changes.
    CHECK(
        check({kinds + "buffer t: f32[6, 5]\nscore_mod = score + t[g[q_idx] if q_idx % 2 == 0 else "
                       "5, k[b, kv_idx]]"},
              random) > 0);
    check_piece(kinds + "buffer t: f32[5, 6, H]\nscore_mod = score + t[where(q_idx < 60, 3, "
                        "g[q_idx]), k[b, kv_idx] if kv_idx != 7 else 5, h]");
    check_piece(kinds + "buffer t: f32[H, 40]\nbuffer u: f32[30]\nscore_mod = score + t[h, 39 if "
                        "kv_idx >= 90 else g[q_idx] * 7 + k[b, kv_idx]] * u[29 if q_idx % 50 == 3 "
                        "else k[b, kv_idx] * 5 + g[q_idx]]",
                2);
    // No split: 64 bits are needed on the way, and an element's own number.
    check_piece(
        "buffer n: i64[B, 600]\nbuffer t: f32[30]\nscore_mod = score + t[29 if q_idx < 9 else "
        "(n[b, q_idx] << 40) // 2 ** 41 + n[b, kv_idx]]");
    check(
        {"buffer d: i8[B, Q_LEN, KV_LEN]\nbuffer t: f32[30]\nscore_mod = score + t[29 if q_idx < 9 "
         "else d[b, q_idx, kv_idx]]"},
        random);
}

TEST_CASE("tables of sizes that tensors decide, and several of them") {
    std::mt19937 random(20261125);
    const std::string kinds = "buffer g: i32[Q_LEN]\nbuffer k: i32[B, KV_LEN]\n";
    const std::string text =
        kinds + "buffer t: f32[N, H, N]\nscore_mod = score + t[g[q_idx], h, k[b, kv_idx]]";
    check({text, 1, {0}, {5}}, random);
    check({text, 1, {1}, {4}}, random);
    // More entries than words.
    check({text, 1, {2}, {70}}, random);
    check({"buffer t: f32[M, N]\nscore_mod = score + t[q_idx // 3, kv_idx // 5]",
           1,
           {0, 1, 2},
           {90, 40}},
          random);
    check({kinds + "buffer t: f32[H, 5, 5]\nbuffer u: bf16[N]\nscore_mod = score * t[h, g[q_idx], "
                   "k[b, kv_idx]] + u[abs(q_idx // 9 - kv_idx // 9)] + t[h, k[b, kv_idx], "
                   "g[q_idx]]",
           3,
           {0},
           {90}},
          random);
    check({kinds + "buffer t: f32[5, 5]\nscore_mod = 8 * tanh((score + t[k[b, kv_idx], g[q_idx]]) "
                   "/ 8) + where(q_idx % 5 == 2, 0, t[g[q_idx], k[b, kv_idx]])",
           2,
           {0}},
          random);
}

TEST_CASE("logits of tables by which tiles of keys are aligned") {
    std::mt19937 random(20261126);
    std::ptrdiff_t without_looks = 0;
    const auto check_aligned = [&](std::string text, int keys, std::size_t tables = 1) {
        without_looks += check({std::move(text), tables, {0, 1}, {}, keys}, random);
    };
    const std::string grid = "t[h, q_idx // 64 - kv_idx // 64 + 9, q_idx % 64 - kv_idx % 64 + 63]";
    // Rows that share what they read, and those that do not; tiles of several rows, and of parts.
    check_aligned("buffer t: f32[H, 19, 127]\nscore_mod = score + " + grid, 128);
    check_aligned("buffer t: bf16[127, H, 19]\nscore_mod = score - 0.5 * t[kv_idx % 64 - q_idx % "
                  "64 + 63, h, q_idx // 64 - kv_idx // 64 + 9]",
                  128);
    check_aligned("buffer t: f32[H, 23, 79]\nscore_mod = score + t[h, q_idx // 40 - kv_idx // 40 "
                  "+ 9, q_idx % 40 - kv_idx % 40 + 39]",
                  80);
    check_aligned("buffer t: f32[H, 5, 255]\nscore_mod = score + t[h, q_idx // 128 - kv_idx // "
                  "128 + 2, q_idx % 128 - kv_idx % 128 + 127]",
                  128);
    check_aligned("buffer t: f32[9, 15, 31, H]\nscore_mod = score + t[q_idx // 128 - kv_idx // "
                  "128 + 4, q_idx // 16 % 8 - kv_idx // 16 % 8 + 7, q_idx % 16 - kv_idx % 16 + "
                  "15, h]",
                  128);
    // Few tiles are inside of the slice.
    check_aligned("buffer t: f32[H, 3, 61]\nscore_mod = score + t[h, q_idx // 32 - kv_idx // 32 + "
                  "1, q_idx % 32 - kv_idx % 32 + 30]",
                  96);
    // What else is added, multiplied and capped.
    check_aligned("buffer t: f32[H, 19, 127]\nbuffer s: f32[H]\nscore_mod = score * s[h] + " + grid,
                  128);
    check_aligned("buffer t: f32[H, 19, 127]\nbuffer u: f32[31, 31]\nscore_mod = 8 * tanh((score "
                  "+ " +
                      grid +
                      " * u[q_idx // 32 - kv_idx // 32 + 15, q_idx % 32 // 2 - kv_idx % 32 // 8 "
                      "+ 4]) / 8)",
                  128, 2);
    check_aligned("buffer t: f32[H, 19, 127]\nscore_mod = score + " + grid +
                      "\nmask_mod = q_idx >= kv_idx",
                  128);
    CHECK(without_looks > 9);
}

TEST_CASE("logits of tables by which groups of keys are not evenly spaced") {
    std::mt19937 random(20261127);
    std::ptrdiff_t without_looks = 0;
    const auto check_aligned = [&](std::string text, int keys, std::vector<int> sources = {0, 1}) {
        without_looks += check({std::move(text), 1, std::move(sources), {}, keys}, random);
    };
    const auto grid = [](int width, int offset = 0) {
        return formatted("t[h, (q_idx - {0}) // {1} - (kv_idx - {0}) // {1} + 40, (q_idx - {0}) % "
                         "{1} - (kv_idx - {0}) % {1} + {2}]",
                         offset, width, width - 1);
    };
    for (const auto& [width, keys] : {std::pair(14, 112), {12, 96}, {7, 112}, {10, 80}, {28, 112}})
        check_aligned(formatted("buffer t: f32[H, 81, {}]\nscore_mod = score + {}", 2 * width - 1,
                                grid(width)),
                      keys);
    // Keys of a tile that are the next one's.
    for (const auto& [width, keys, step] :
         {std::tuple(37, 112, 111), {27, 112, 108}, {9, 128, 126}, {23, 128, 115}, {13, 64, 52}}) {
        const std::string text =
            formatted("buffer t: f32[H, 81, {}]\nscore_mod = score + ", 2 * width - 1);
        without_looks += check({text + grid(width), 1, {0, 1}, {}, keys, step}, random);
        without_looks += check({text + "where(q_idx < 1 or kv_idx < 1, 0, " + grid(width, 1) + ")",
                                1,
                                {0, 1, 4},
                                {},
                                keys,
                                step},
                               random);
        without_looks +=
            check({text + grid(width) + "\nmask_mod = q_idx >= kv_idx", 1, {0, 1}, {}, keys, step},
                  random);
    }
    check_aligned("buffer t: bf16[H, 81, 27]\nscore_mod = score - 0.5 * " + grid(14, 3), 112);
    // Tokens before the image, of queries and keys, or of one of these.
    for (const std::string_view choice :
         {"where(q_idx == 0 or kv_idx == 0, 0, {})", "where(kv_idx < 5, 0, {})",
          "where(q_idx >= 3 and 3 <= kv_idx, {}, 0)", "where(q_idx % 5 == 2, {}, 0)",
          "where(q_idx == 0 and kv_idx == 0, 1.5, where(q_idx == 0, 2, where(kv_idx == 0, 3, {})))",
          "where(kv_idx % 31 == 7, {}, -inf)"})
        check_aligned("buffer t: f32[H, 81, 27]\nscore_mod = score + " +
                          std::string(choice).replace(choice.find("{}"), 2, grid(14, 1)),
                      112, {0, 1, 4});
    check_aligned("buffer t: f32[H, 81, 127]\nscore_mod = score + where(q_idx == 0 or kv_idx == "
                  "0, 0, " +
                      grid(64, 1) + ")",
                  128, {0, 1, 4});
    CHECK(without_looks > 70);
}
