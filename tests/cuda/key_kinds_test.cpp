// Kinds of keys and of pairs in forward_sm90.cu: products of the columns that a warp of the host
// stores, and what it adds apart, or reads from the copies of its lanes, against the score mod of
// each element.
#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include "compile/kernels.h"
#include "cuda/emitted.h"
#include "draws.h"
#include "fresh_seed.h"
#include "host_arguments.h"
#include "host_module.h"
#include "ir/interp.h"
#include "passes/decompose.h"
#include "plan/arch/sm90/sm90.h"
#include "plan/plan.h"
#include "random_data.h"
#include "sm90/arguments.h"
#include "support/text.h"

namespace {

using namespace flexc;

// scores: [16 rows][keys of a tile], of a warp, in the units of products. Whether they were added
// apart.
using Function = bool(const std::uint64_t* words, const ::sm90::KernelArguments*, int head,
                      int warp_row, int first_key, float* scores);

constexpr std::string_view kProducts = R"(
#include "mod.cuh"
#include "sm90/forward_key_kinds.cuh"
using namespace sm90;
static float element(unsigned panel, int row, int column) {
    const int byte = row * 128 + column * 2;
    return flexc_to_float(loaded<flexc_bf16>(panel + (byte ^ (byte >> 3 & 0x70))));
}
// Of the columns as MMAs sum over them.
static float product(unsigned queries, int row, unsigned keys, int key) {
    constexpr int kColumns = mod::kSizes.kind_columns;
    float sum = 0;
    for (int column = 0; column < 2 * kColumns; ++column)
        sum += element(queries + kLayout.kind_queries, row, column) *
               element(keys + kLayout.kind_keys, key, column % 16);
    return sum;
}
extern "C" bool run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int warp_row, int first_key, float* to) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    const SequenceLength length(*attention, place.b);
    constexpr unsigned kQueries = 0, kKeys = 1 << 17;
    std::memset(memory_of_block, 0xff, sizeof memory_of_block);
    for (int key = 0; key < mod::kKeyTile; ++key)
        MultipliedKeyKinds::store_key(
            kKeys, key, kind_of_key(*attention, arguments, place, first_key + key));
    const int tile_row = warp_row % mod::kQueryTile;
    bool are_apart = false;
    run_warp([&](int lane) {
        const ConsumerThread thread{tile_row / 64, lane, tile_row / 16 % 4};
        MultipliedKeyKinds kinds{};
        kinds.store_rows(arguments, place, length, 1 / attention->scale, warp_row, kQueries,
                         thread);
        __syncwarp();
        Scores scores, before;
        for (int i = 0; i < kScores; ++i)
            before[i] = scores[i] =
                product(kQueries, thread.first_row() + 8 * fragment_row(i), kKeys,
                        lane % 4 * 2 + fragment_column(i));
        kinds.add_apart(scores, kKeys, kQueries, thread);
        const bool is_changed = std::memcmp(scores, before, sizeof scores) != 0;
        if (__any_sync(0xffffffffu, is_changed)) are_apart = true;
        for (int i = 0; i < kScores; ++i)
            to[(lane / 4 + 8 * fragment_row(i)) * mod::kKeyTile + lane % 4 * 2 +
               fragment_column(i)] = scores[i];
    });
    return are_apart;
}
)";

// What a warp reads from its copies, nothing of which is rounded.
constexpr std::string_view kCopies = R"(
#include "mod.cuh"
#include "sm90/forward_key_kinds.cuh"
using namespace sm90;
extern "C" bool run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int warp_row, int first_key, float* to) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    const SequenceLength length(*attention, place.b);
    constexpr unsigned kPlaces = 0, kTiles = 1 << 12;
    std::memset(memory_of_block, 0xff, sizeof memory_of_block);
    for (int word = 0; word < kKindCopies.key_bytes / 4; ++word)
        CopiedKeyKinds::store_places(*attention, arguments, place, first_key, kPlaces, word);
    const int tile_row = warp_row % mod::kQueryTile;
    first_of_tables = kTiles + tile_row / 16 * kKindCopies.warp_bytes;
    end_of_tables = first_of_tables + kKindCopies.warp_bytes;
    reads_outside_tables = 0;
    run_warp([&](int lane) {
        const ConsumerThread thread{tile_row / 64, lane, tile_row / 16 % 4};
        CopiedKeyKinds::store_rows(arguments, place, length, 1 / attention->scale, warp_row, kTiles,
                                   thread);
        Scores scores;
        CopiedKeyKinds::load(scores, kPlaces, kTiles, thread);
        for (int i = 0; i < kScores; ++i)
            to[(lane / 4 + 8 * fragment_row(i)) * mod::kKeyTile + lane % 4 * 2 +
               fragment_column(i)] = reads_outside_tables == 0 ? scores[i] : 12345.0f;
    });
    return true;
}
)";

// What a warp reads from the copies of a head, by the bytes of its pairs.
constexpr std::string_view kPairs = R"(
#include "mod.cuh"
#include "sm90/forward_key_kinds.cuh"
using namespace sm90;
extern "C" bool run(const unsigned long long* words, const KernelArguments* attention, int head,
                    int warp_row, int first_key, float* to) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    constexpr unsigned kKinds = 0, kCopies = 1 << 16;
    std::memset(memory_of_block, 0xff, sizeof memory_of_block);
    static_assert(kPairKinds.tile_bytes <= kCopies);
    const int tile_row = warp_row % mod::kQueryTile, first_row = warp_row - tile_row;
    // Those of all heads are stored for the first one.
    const HeadPlace first(*attention, arguments, head / attention->heads * attention->heads);
    for (unsigned thread = 0; thread < kTabulatedStep; ++thread)
        store_pairs(*attention, arguments, first, first_row, first_key, memory_of_block + kKinds,
                    thread, kTabulatedStep);
    const mod::Row row =
        mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, 0);
    for (int thread = 0; thread < kTableThreads; ++thread)
        PairAddends::store_copies(arguments, place, row, 0, kCopies, 1 / attention->scale, thread,
                                  kTableThreads);
    first_of_tables = kCopies;
    end_of_tables = kCopies + 4 * kPairKinds.entries * kPairCopies;
    reads_outside_tables = 0;
    run_warp([&](int lane) {
        const ConsumerThread thread{tile_row / 64, lane, tile_row / 16 % 4};
        Scores scores;
        CopiedPairKinds::load(scores, kKinds, kCopies, thread);
        for (int i = 0; i < kScores; ++i)
            to[(lane / 4 + 8 * fragment_row(i)) * mod::kKeyTile + lane % 4 * 2 +
               fragment_column(i)] = reads_outside_tables == 0 ? scores[i] : 12345.0f;
    });
    return true;
}
)";

constexpr int kRounds = 2; // for each program

bool is_near(double x, double y, double relative) {
    return x == y || (std::isnan(x) && std::isnan(y)) || std::abs(x - y) <= relative * std::abs(y);
}

struct Way {
    std::string_view text;
    int head_dim;
    bool takes_apart = false; // what is added
};

// known: the number of kinds, or none. special: of a quarter of the entries.
void check(const Way& way, const std::string& text, std::optional<int> known, std::mt19937& random,
           double special) {
    CAPTURE(text);
    CAPTURE(special);
    const auto below = test::draws_below(random);
    auto mod = test::lower_text(text, 128, 128, false);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));
    const passes::DecomposedMod decomposed = passes::decompose_score_with_kinds(*mod);
    const int kinds = decomposed.parts.kinds.count;
    REQUIRE(kinds == known.value_or(kinds));
    REQUIRE(kinds > 0);
    const int head_dim = way.head_dim;
    const plan::KernelRequest request{.arch = 90,
                                      .dtype = DType::f16,
                                      .head_dim = head_dim,
                                      .head_dim_v = head_dim,
                                      .has_score_mod = true,
                                      .terms = {.by_kinds = {kinds, way.text == kPairs}}};
    const plan::KernelConfig config = plan::candidates(request).front();
    const plan::sm90::Forward* forward = plan::sm90::forward_of(config);
    REQUIRE(forward != nullptr);
    REQUIRE((way.text == kProducts ? forward->sizes.kind_columns >= kinds
             : way.text == kPairs  ? forward->sizes.pair_kinds == kinds
                                   : forward->sizes.kind_copies == kinds));
    REQUIRE(decomposed.parts.kinds.are_of_pairs == (way.text == kPairs));
    const test::HostModule module(
        std::string(way.text),
        cuda::emit_mod(decomposed.mod, decomposed.parts, config, {.dtype = DType::f16}));
    bool any_apart = false;
    for (int round = 0; round < kRounds; ++round) {
        ::sm90::KernelArguments attention{};
        attention.batch = 2;
        attention.heads = 4;
        attention.kv_heads = 2;
        attention.q_len = 90 + below(200);
        attention.kv_len = 130 + below(200);
        attention.scale = 0.088F;
        attention.q_offset = below(2) * below(60);
        attention.kv_offset = below(2) * below(60);
        ir::Environment at;
        at.sizes = {2,
                    4,
                    2,
                    attention.q_len + attention.q_offset,
                    attention.kv_len + attention.kv_offset,
                    128,
                    128};
        test::RandomData data(mod->program, at, random);
        if (special != 0) data.replace_some(special, random);
        const test::HostArguments arguments(decomposed.mod, at);
        const int head = below(8), warp_row = 16 * below((attention.q_len + 15) / 16);
        const int first_key =
            config.block.key_tile * below((attention.kv_len - 1) / config.block.key_tile + 1);
        std::vector<float> scores(static_cast<std::size_t>(16 * config.block.key_tile));
        const bool are_apart = module.function<Function>("run")(arguments.words(), &attention, head,
                                                                warp_row, first_key, scores.data());
        any_apart = any_apart || are_apart;
        at.b = head / 4;
        at.h = head % 4;
        at.h_kv = at.h / 2;
        at.score = 0;
        int wrong = 0;
        for (std::size_t i = 0; i < scores.size(); ++i) {
            const int q = warp_row + static_cast<int>(i) / config.block.key_tile;
            const int kv = first_key + static_cast<int>(i) % config.block.key_tile;
            if (q >= attention.q_len || kv >= attention.kv_len) continue;
            at.q_idx = q + attention.q_offset;
            at.kv_idx = kv + attention.kv_offset;
            const double expected = ir::evaluate_real(mod->program, mod->score, at);
            const double found = static_cast<double>(scores[i]) * attention.scale;
            if (!is_near(found, expected, are_apart ? 0x1p-21 : 0x1p-17)) ++wrong;
        }
        CHECK(wrong == 0);
    }
    CHECK(any_apart == way.takes_apart);
}

void check_products(const std::string& text, int kinds, std::mt19937& random, double special = 0,
                    bool takes_apart = false) {
    const int head_dim = kinds > 8 || random() % 2 == 0 ? 128 : 64;
    check({kProducts, head_dim, takes_apart}, text, kinds, random, special);
}
void check_copies(const std::string& text, int kinds, std::mt19937& random, double special = 0) {
    // Some have tiles of less than 128 keys.
    const int head_dim = kinds > 16 && random() % 3 == 0 ? 128 : kinds > 8 ? 64 : 16;
    check({kCopies, head_dim, true}, text, kinds, random, special);
}

void check_pairs(const std::string& text, std::optional<int> kinds, std::mt19937& random,
                 double special = 0) {
    // Some have tiles of less than 128 keys. The widest have no room for so many kinds as others.
    constexpr int kMostOfWidest = 128, kMostOfWide = 255;
    const std::array head_dims = {16, 64, 128, 192, 256};
    const int most = kinds.value_or(kMostOfWide + 1);
    const int head_dim = head_dims[random() % (most <= kMostOfWidest ? 5
                                               : most <= kMostOfWide ? 4
                                                                     : 3)];
    check({kPairs, head_dim, true}, text, kinds, random, special);
}

const std::string kKinds = "buffer g: i32[B, Q_LEN]\nbuffer k: i32[B, KV_LEN]\n";
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Members of the class: the table's dims in any order, one or two tables.
struct Member {
    std::string text;
    int kinds;
};
Member random_member(std::mt19937& random, int most_kinds) {
    const auto below = test::draws_below(random);
    const auto one_of = [&](std::initializer_list<const char*> texts) {
        return std::string(texts.begin()[below(static_cast<int>(texts.size()))]);
    };
    const int kinds = 2 + below(most_kinds - 1);
    const std::string kind = one_of({"k[b, kv_idx]", "k[b, kv_idx] * 4 - 1", "kv_idx // 3 % 17"});
    std::string text = kKinds + "buffer a: f32[H]\n", score = "score";
    const int tables = 1 + below(2);
    for (int i = 0; i < tables; ++i) {
        std::vector<std::pair<std::string, std::string>> dims = {
            {std::to_string(1 + below(9)),
             one_of({"g[b, q_idx]", "g[b, q_idx] + 2", "q_idx // 5 % 7"})},
            {std::to_string(kinds), kind}};
        if (below(2) == 0) dims.emplace_back("H", "h");
        if (below(3) == 0) dims.emplace_back("B", "b");
        std::ranges::shuffle(dims, random);
        std::string declared, index;
        for (const auto& [dim, at] : dims) {
            declared += (declared.empty() ? "" : ", ") + dim;
            index += (index.empty() ? "" : ", ") + at;
        }
        const std::string name = i == 0 ? "t" : "u";
        text += "buffer " + name + ": " + one_of({"f32", "bf16", "f16"}) + "[" + declared + "]\n";
        score += one_of({" + ", " - ", " + 0.5 * "}) + name + "[" + index + "]";
    }
    return {text + "score_mod = " + score + "\n" + one_of({"", "mask_mod = q_idx >= kv_idx\n"}),
            kinds};
}

// An index that is stored for each pair, whose dims have any order, clamped or not.
Member random_pairs(std::mt19937& random) {
    const auto below = test::draws_below(random);
    const auto one_of = [&](std::initializer_list<const char*> texts) {
        return std::string(texts.begin()[below(static_cast<int>(texts.size()))]);
    };
    using Dims = std::vector<std::pair<std::string, std::string>>;
    const auto shuffled = [&](Dims dims) {
        std::ranges::shuffle(dims, random);
        std::pair<std::string, std::string> all;
        for (const auto& [dim, at] : dims) {
            all.first += (all.first.empty() ? "" : ", ") + dim;
            all.second += (all.second.empty() ? "" : ", ") + at;
        }
        return all;
    };
    const int kinds = below(4) == 0 ? 1 + below(255) : 1 + below(12);
    Dims of_pairs = {{"Q_LEN", "q_idx"}, {"KV_LEN", "kv_idx"}};
    if (below(3) != 0) of_pairs.emplace_back("B", "b");
    const auto [pair_dims, pair_index] = shuffled(of_pairs);
    const std::string d = "d[" + pair_index + "]";
    const std::string kind = std::vector<std::string>{
        d, d + " * 3 - 2", "min(max(" + d + ", 0), " + std::to_string(kinds) + ")",
        "where(q_idx == 0, 0, " + d + ")",
        "where(kv_idx > q_idx, 2, " + d + " + k[kv_idx])"}[below(5)];
    std::string text = "buffer d: " + one_of({"i32", "i64", "u8", "i16"}) + "[" + pair_dims +
                       "]\nbuffer k: i32[KV_LEN]\nbuffer a: f32[H]\n";
    std::string score = "score";
    const int tables = 1 + below(2);
    for (int i = 0; i < tables; ++i) {
        Dims dims = {{std::to_string(kinds), kind}};
        if (below(3) != 0) dims.emplace_back("H", "h");
        if (below(3) == 0) dims.emplace_back("B", "b");
        const auto [table_dims, index] = shuffled(dims);
        const std::string name = i == 0 ? "t" : "u";
        text += "buffer " + name + ": " + one_of({"f32", "bf16", "f16"}) + "[" + table_dims + "]\n";
        score += one_of({" + ", " - ", " + 0.5 * ", " + a[h] * "}) + name + "[" + index + "]";
    }
    return {text + "score_mod = " + score + "\n" + one_of({"", "mask_mod = q_idx >= kv_idx\n"}),
            kinds};
}

// Several indices that are stored for pairs, conditions beside them, and functions of what they
// read.
std::string random_digits(std::mt19937& random) {
    const auto below = test::draws_below(random);
    const auto one_of = [&](std::initializer_list<std::string> texts) {
        return texts.begin()[below(static_cast<int>(texts.size()))];
    };
    const std::string d = one_of({"d[b, q_idx, kv_idx]", "d[b, q_idx, kv_idx] - 1"}),
                      e = one_of({"e[b, kv_idx, q_idx]", d});
    const std::string of_table = "t[h, " + d + "]", of_other = "u[" + e + ", h]",
                      of_query = "u[g[b, q_idx], h]";
    const std::string condition =
        one_of({"q_idx == 0 or kv_idx == 0", "g[b, q_idx] == g[b, kv_idx]", d + " == 2"});
    const std::string addend = one_of({
        of_table + " - 2 * " + of_other,
        of_table + " * " + of_other,
        of_table + " * " + of_query,
        "where(" + condition + ", a[h], " + of_table + ")",
        "where(" + condition + ", " + of_table + ", a[h] * " + of_query + ")",
        "exp(" + of_table + ") + abs(" + of_other + ")",
    });
    return "buffer d: i32[B, Q_LEN, KV_LEN]\nbuffer e: u8[B, KV_LEN, Q_LEN]\n"
           "buffer g: i32[B, Q_LEN]\nbuffer a: f32[H]\nbuffer t: f32[H, " +
           one_of({"3", "20", "N", "400"}) + "]\nbuffer u: f32[" + one_of({"2", "6"}) +
           ", H]\nscore_mod = score + " + addend + "\n" +
           one_of({"", "mask_mod = q_idx >= kv_idx\n"});
}

} // namespace

TEST_CASE("what kinds of keys add is a product of columns") {
    std::mt19937 random(20261125);
    check_products(
        kKinds + "buffer t: f32[5, 5, H]\nscore_mod = score + t[g[b, q_idx], k[b, kv_idx], h]", 5,
        random);
    check_products(kKinds + "buffer t: f16[16, 5]\nbuffer a: f32[H]\nscore_mod = score + a[h] * "
                            "t[k[b, kv_idx], g[b, q_idx]] / 3",
                   16, random);
    // Some kinds are outside, and a query has a number for each of them.
    check_products(kKinds + "buffer t: f32[4, 3]\nbuffer u: f32[Q_LEN, 3]\nscore_mod = score + "
                            "t[g[b, q_idx], k[b, kv_idx] - 1] - 2 * u[q_idx, k[b, kv_idx] - 1]",
                   3, random);
}

TEST_CASE("random members of the class of kinds of keys") {
    std::mt19937 random(test::fresh_seed());
    for (int i = 0; i < 4; ++i) {
        const Member member = random_member(random, 16);
        check_products(member.text, member.kinds, random);
        const Member with_copies = random_member(random, 64);
        check_copies(with_copies.text, with_copies.kinds, random);
    }
}

TEST_CASE("random members of the class of kinds of pairs") {
    std::mt19937 random(test::fresh_seed());
    for (int i = 0; i < 6; ++i) {
        const Member member = random_pairs(random);
        check_pairs(member.text, member.kinds, random);
    }
}

TEST_CASE("random members of the class of pairs whose kinds several numbers decide") {
    std::mt19937 random(test::fresh_seed());
    for (int i = 0; i < 6; ++i)
        check_pairs(random_digits(random), {}, random);
}

TEST_CASE("more kinds of pairs than bytes have are words of two bytes") {
    std::mt19937 random(20261201);
    const std::string d = "buffer d: i32[Q_LEN, KV_LEN]\n";
    for (const int kinds : {256, 600, 3000})
        check_pairs(formatted("{}buffer t: f32[H, {}]\nscore_mod = score + t[h, d[q_idx, kv_idx] * "
                              "{} - 1]",
                              d, kinds, kinds / 7),
                    kinds, random, kinds == 600 ? -kInfinity : 0);
}

TEST_CASE("a number of entries that a call binds has room for as many kinds as bytes have") {
    std::mt19937 random(20261202);
    const std::string buffers = "buffer d: i32[B, Q_LEN, KV_LEN]\nbuffer t: f32[H, N]\n";
    check_pairs(buffers + "score_mod = score + t[h, d[b, q_idx, kv_idx]]", 255, random);
    // A half for each case of the condition.
    check_pairs(buffers + "score_mod = score + where(q_idx == 0, 1.5, t[h, d[b, q_idx, kv_idx]])",
                254, random);
}

TEST_CASE("addends by kinds of pairs are what they are") {
    std::mt19937 random(20261128);
    for (const double special :
         {-1e30, -kInfinity, kInfinity, std::numeric_limits<double>::quiet_NaN()})
        check_pairs("buffer d: u8[B, Q_LEN, KV_LEN]\nbuffer t: f32[H, 5]\n"
                    "score_mod = score + t[h, d[b, q_idx, kv_idx] - 1]",
                    5, random, special);
    check_pairs("buffer d: i64[Q_LEN, KV_LEN]\nbuffer t: f32[H, 255]\n"
                "score_mod = score + t[h, d[q_idx, kv_idx] * 80]",
                255, random);
}

TEST_CASE("addends by kinds that two numbers are not enough for are added apart") {
    std::mt19937 random(20261126);
    const std::string text =
        kKinds + "buffer t: f32[5, 5]\nscore_mod = score + t[g[b, q_idx], k[b, kv_idx]]";
    for (const double special :
         {45.0, -1e30, 1e37, -kInfinity, kInfinity, std::numeric_limits<double>::quiet_NaN()})
        check_products(text, 5, random, special, true);
    for (const double special : {44.0, -44.3})
        check_products(text, 5, random, special, false);
    check_products(
        kKinds + "buffer t: f16[16, 5]\nscore_mod = score + t[k[b, kv_idx] * 4 - 1, g[b, q_idx]]",
        16, random, -60000, true);
}

TEST_CASE("of more kinds of keys each lane has copies, whatever is added") {
    std::mt19937 random(20261127);
    const std::string text =
        kKinds + "buffer t: f32[32, 32]\nscore_mod = score + t[g[b, q_idx], k[b, kv_idx]]";
    for (const double special :
         {0.0, 45.0, -1e30, -kInfinity, kInfinity, std::numeric_limits<double>::quiet_NaN()})
        check_copies(text, 32, random, special);
}

TEST_CASE("programs whose keys enter otherwise have no kinds") {
    const std::string kinds = "buffer g: i32[Q_LEN]\nbuffer k: i32[KV_LEN]\nbuffer t: f32[6, 6]\n"
                              "buffer d: i32[9, Q_LEN, KV_LEN]\nbuffer w: f32[9000]\n";
    for (const std::string_view score :
         {"score * 0.5 + t[g[q_idx], k[kv_idx]]", "score + tanh(t[g[q_idx], k[kv_idx]])",
          "score + t[g[q_idx], k[kv_idx]] * k[kv_idx]", "score + t[k[kv_idx], k[kv_idx] + q_idx]",
          "score + t[g[q_idx], k[kv_idx]] + t[g[q_idx], 5 - k[kv_idx]]",
          "9 * tanh((score + t[g[q_idx], k[kv_idx]]) / 9)",
          "score + t[g[q_idx], min(k[kv_idx], q_idx)]",
          // Not stored for pairs; of a head; a number of the query beside the pair; of more than
          // there is room for; of each batch entry, where what is stored is for all.
          "score + t[0, (q_idx + kv_idx) % 6]", "score + t[0, d[h, q_idx, kv_idx]]",
          "score + w[d[0, q_idx, kv_idx]]", "score + g[q_idx] * t[0, d[0, q_idx, kv_idx]]",
          "score + where((b + q_idx) % 2 == 0, t[0, d[0, q_idx, kv_idx]], t[1, k[kv_idx]])"}) {
        CAPTURE(score);
        auto mod = test::lower_text(kinds + "score_mod = " + std::string(score), 64, 64, false);
        REQUIRE(mod.has_value());
        CHECK(!passes::decompose_score_with_kinds(*mod).parts.kinds.found());
    }
}

TEST_CASE("kinds of keys take at most a quarter of the columns of queries, and more have copies") {
    const auto candidate = [](int kinds, int head_dim) {
        return plan::candidates({.arch = 90,
                                 .dtype = DType::bf16,
                                 .head_dim = head_dim,
                                 .head_dim_v = head_dim,
                                 .has_score_mod = true,
                                 .terms = {.by_kinds = {kinds}}})
            .front();
    };
    const auto columns = [&](int kinds, int head_dim) {
        return plan::sm90::forward_of(candidate(kinds, head_dim))->sizes.kind_columns;
    };
    CHECK(columns(8, 64) == 8);
    CHECK(columns(9, 64) == 0);
    CHECK(columns(9, 128) == 16);
    CHECK(columns(16, 128) == 16);
    CHECK(columns(17, 128) == 0);
    CHECK(columns(2, 32) == 0);
    CHECK(columns(17, 256) == 0);
    CHECK(candidate(8, 64).reason.find("products by 8 kinds of keys in 16 more columns") !=
          std::string::npos);
    CHECK(candidate(32, 128).reason.find("no products by 32 kinds of keys: 64 columns for them are "
                                         "more than a quarter of queries'") != std::string::npos);
    const auto copies = [&](int kinds, int head_dim) {
        return plan::sm90::forward_of(candidate(kinds, head_dim))->sizes.kind_copies;
    };
    CHECK(copies(8, 64) == 0);
    CHECK(copies(9, 64) == 9);
    CHECK(copies(64, 64) == 64);
    CHECK(copies(16, 128) == 0);
    CHECK(copies(32, 128) == 32);
    CHECK(candidate(32, 128).block.key_tile == 128);
    CHECK(candidate(32, 128).reason.find("a copy of their addends for each thread") !=
          std::string::npos);
}

TEST_CASE("kinds of pairs have as many copies as there is room for, and bytes with each tile") {
    const auto sizes = [](int kinds, int head_dim) {
        const plan::KernelConfig config =
            plan::candidates({.arch = 90,
                              .dtype = DType::bf16,
                              .head_dim = head_dim,
                              .head_dim_v = head_dim,
                              .has_score_mod = true,
                              .terms = {.by_kinds = {kinds, true, true}}})
                .front();
        CHECK(config.reason.find("kinds of pairs of a query and a key") != std::string::npos);
        return plan::sm90::forward_of(config)->sizes;
    };
    for (const int kinds : {1, 64, 255}) {
        CHECK(sizes(kinds, 64).query_tile == 192);
        CHECK(sizes(kinds, 64).table_stages == 2);
        CHECK(sizes(kinds, 128).query_tile == 128);
        CHECK(sizes(kinds, 128).key_tile == 128);
    }
    CHECK(sizes(64, 128).table_words == 65 * 32);
    CHECK(::sm90::forward_layout(sizes(64, 64)).pair_kinds.bytes == 192 * 128);
}
