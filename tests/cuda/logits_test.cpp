// Logits and softmax of forward_sm90.cu, run on the host for every thread of a warp in turn: what
// is staged for a 2-D key index, and what is computed before for keys and distances, has to add
// up to the score mod of each element.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <span>
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
#include "tabulated_text.h"

namespace {

using namespace flexc;

passes::KeyIndex2d index_2d_of(const passes::Mod& mod) {
    return passes::key_index_2d(mod, passes::decompose_score(mod).parts);
}

constexpr int kRows = 16; // of a warp

// products and weights: [tiles][rows][keys of a tile]; references: [tiles][lanes][rows of a lane],
// what the weights of a tile are relative to, as an exponent.
using Function = void(const std::uint64_t* words, const sm90::KernelArguments*, int head,
                      int warp_row, int tiles, const float* products, float* weights,
                      float* references, float* sinks);

constexpr std::string_view kText = R"(
#include "sm90/softmax.cuh"
#include "sm90/forward_index_2d.cuh"
#include "sm90/forward_key_addend.cuh"
float bf16_at(unsigned from) {
    return __uint_as_float(static_cast<unsigned>(load_shared_half(from)) << 16);
}
// As the products do: the eight products of a query and a key are summed twice.
void add_index_2d_rows(Scores& scores, float scale, int lane) {
    constexpr unsigned kUnit = 1 << 16;
    store_index_2d_unit(kUnit, scale);
    for (int i = 0; i < kScores; ++i) {
        const int query = lane / 4 + 8 * fragment_row(i);
        for (int part = 0; part < 8; ++part)
            scores[i] +=
                2 * bf16_at(kIndex2dRowBytes * query + 2 * part) * bf16_at(kUnit + 2 * part);
    }
}
// The same of keys, as they were computed before.
void add_key_addends(Scores& scores, const sm90::KernelArguments& attention, int head,
                     int first_key, int lane) {
    constexpr unsigned kUnit = 1 << 16;
    store_key_unit(kUnit);
    const int at = vector_head(attention, head / attention.heads, head % attention.heads);
    std::memcpy(memory_of_block, key_operands(attention, at) + kOperandFloats * first_key,
                KeyAddendRing::kBytes);
    for (int i = 0; i < kScores; ++i) {
        const int key = lane % 4 * 2 + fragment_column(i);
        for (int part = 0; part < 8; ++part)
            scores[i] += 2 * bf16_at(kUnit + 2 * part) *
                         bf16_at(ForwardLayout::kAddendBytes * key + 2 * part);
    }
}
// The same of a head's slope and the keys' places.
void add_slope(Scores& scores, const sm90::KernelArguments& attention,
               const mod::Arguments& arguments, const HeadPlace& place, int lane) {
    constexpr unsigned kSlope = 1 << 16, kKeys = kSlope + ForwardLayout::kAddendBytes;
    visit_element(attention, arguments, place, 0, 0, [&](const mod::At& at) {
        store_slope(kSlope, mod::slope(at), attention.scale * mod::multiplier(at));
        return 0;
    });
    for (int key = 0; key < mod::kKeyTile; ++key)
        store_slope_key(kKeys + ForwardLayout::kAddendBytes * key, key);
    for (int i = 0; i < kScores; ++i) {
        const int key = lane % 4 * 2 + fragment_column(i);
        for (int part = 0; part < 8; ++part)
            scores[i] += 2 * bf16_at(kSlope + 2 * part) *
                         bf16_at(kKeys + ForwardLayout::kAddendBytes * key + 2 * part);
    }
}
// The same of products of rows and keys; a step's halves are two of these.
void add_row_key_products(Scores& scores, const sm90::KernelArguments& attention,
                          const mod::Arguments& arguments, const HeadPlace& place, int head,
                          int warp_row, int first_key, int lane) {
    constexpr unsigned kRow = 1 << 16;
    const int at = vector_head(attention, head / attention.heads, head % attention.heads);
    for (int i = 0; i < kScores; ++i)
        for (int which = 0; which < kKeyOperands; ++which) {
            const int query = warp_row + lane / 4 + 8 * fragment_row(i);
            const int key = lane % 4 * 2 + fragment_column(i);
            visit_element(attention, arguments, place, min(query, attention.q_len - 1), 0,
                          [&](const mod::At& element) {
                              store_row_factor(
                                  kRow, which < kRowKeyProducts
                                            ? mod::TabulatedVectors::row_factor(element, which)
                                            : 0);
                              return 0;
                          });
            std::memcpy(memory_of_block,
                        key_operands(attention, at, which) + kOperandFloats * (first_key + key),
                        ForwardLayout::kAddendBytes);
            for (int part = 0; part < 8; ++part)
                scores[i] += bf16_at(kRow + 2 * part) * bf16_at(2 * part);
        }
}
extern "C" bool is_bounded() { return Logits::kAreBounded; }
extern "C" void run(const unsigned long long* words, const sm90::KernelArguments* attention,
                    int head, int warp_row, int tiles, const float* products, float* weights,
                    float* references, float* sinks) {
    const mod::Arguments& arguments = *reinterpret_cast<const mod::Arguments*>(words);
    const HeadPlace place(*attention, arguments, head);
    for (int lane = 0; lane < 32; ++lane) {
        const SequenceLength length(*attention, place.b);
        Logits logits(*attention, arguments, place, length, warp_row, lane);
        Softmax softmax;
        for (int tile = tiles - 1; tile >= 0; --tile) {
            const int first_key = tile * mod::kKeyTile;
            const auto at = [&](int i) {
                const int row = lane / 4 + 8 * fragment_row(i);
                return (tile * 16 + row) * mod::kKeyTile + lane % 4 * 2 + fragment_column(i);
            };
            Scores scores;
            const int tile_row = warp_row / mod::kQueryTile * mod::kQueryTile;
            copy_tabulated(*attention, head, tile_row, first_key);
            logits.find_tabulated(0, warp_row - tile_row + lane / 4);
            for (float& score : scores) score = 0;
            if (LogitForm::kStartsWithDistances) logits.start(scores, 0, first_key);
            for (int i = 0; i < kScores; ++i) scores[i] += products[at(i)];
            logits.find_hidden(first_key, false);
            logits.prepare(first_key);
            for (int thread = 0; thread < kIndex2dThreads; ++thread)
                Index2dQueries(*attention, arguments, place, warp_row + thread)
                    .store<Index2dRows>(*attention, arguments, place, first_key,
                                        kIndex2dRowBytes * thread, [] {});
            if (kLoadsIndex2dRows) logits.load_index_2d_rows(4 * (lane / 4));
            if (kMultipliesIndex2dRows) add_index_2d_rows(scores, attention->scale, lane);
            if (kMultipliesSlope) add_slope(scores, *attention, arguments, place, lane);
            if (kMultipliesKeyAddend)
                add_key_addends(scores, *attention, head, first_key, lane);
            if (kRowKeyProducts > 0)
                add_row_key_products(scores, *attention, arguments, place, head, warp_row,
                                     first_key, lane);
            copy_tabulated(*attention, head, tile_row, first_key);
            logits.find_tabulated(0, warp_row - tile_row + lane / 4);
            logits.apply(scores, first_key);
            const auto keep = [&](int i, float left, float right) {
                weights[at(2 * i)] = left;
                weights[at(2 * i + 1)] = right;
            };
            softmax.compute_p<2>(
                scores, logits, tile == tiles - 1, [](float) {}, [](const auto&) {}, keep);
            for (int r = 0; r < 2; ++r)
                references[(tile * 32 + lane) * 2 + r] = softmax.reference_exponent(r, logits);
        }
        for (int r = 0; r < 2; ++r)
            sinks[lane * 2 + r] = softmax.exponent_of_sink(r, 0.5f, logits);
    }
}
)";

struct Case {
    std::string text;
    int width;         // of the 2-D key index; 0 for none
    double spread = 1; // of products
};

void check(const Case& one, std::mt19937& random) {
    CAPTURE(one.text);
    const auto below = test::draws_below(random);
    auto mod = test::lower_text(one.text, 64, 64, false);
    REQUIRE_MESSAGE(mod.has_value(), (mod ? std::string() : mod.error().message));

    const passes::KeyIndex2d index_2d = index_2d_of(*mod);
    CHECK(index_2d.width == one.width);
    const passes::DecomposedMod folded = passes::decompose_score(*mod, one.width);
    const passes::TabulatedValues of_folded = passes::tabulated_values(folded);
    const ir::Graph& graph = folded.mod.program.graph;
    const plan::PlainTerms plain{
        .tabulated = of_folded,
        .multiplies_key_addend = passes::multiplies_key_addend(folded.mod, folded.parts),
        .adds_keys_alone = passes::adds_keys_alone(folded.mod, folded.parts),
        .adds_by_position = passes::adds_by_position(folded.mod, folded.parts),
        .can_start_with_distances = passes::can_start_with_distances(graph, folded.parts),
        .can_multiply_slope = passes::can_multiply_slope(folded.mod, folded.parts),
        .row_key_products = static_cast<int>(folded.parts.products.size())};
    const plan::KernelConfig config =
        plan::candidates({.arch = 90,
                          .dtype = DType::bf16,
                          .has_score_mod = true,
                          .terms = {.plain = plain, .by_index_2d = {index_2d, of_folded}}})
            .front();
    REQUIRE(plan::sm90::forward_of(config) != nullptr);
    CHECK(config.decomposition.key_width == one.width);
    if (one.width != 0) CHECK(config.block.key_tile % one.width == 0);
    const test::HostModule module(std::string(test::kTabulatedText).append(kText),
                                  test::emitted(*mod, config, {.dtype = DType::bf16}));

    const int keys = config.block.key_tile, tiles = 2, kv_len = keys + 1 + below(keys);
    sm90::KernelArguments attention{};
    attention.batch = 2;
    attention.heads = 4;
    attention.kv_heads = 2;
    attention.q_len = 40 + below(300);
    attention.kv_len = kv_len;
    attention.scale = below(2) == 0 ? 0.5f : 0.3f;
    attention.q_offset = below(5);
    attention.kv_offset = std::max(one.width, 1) * below(3);

    ir::Environment at;
    at.sizes = {2,  4, 2, attention.q_len + attention.q_offset, kv_len + attention.kv_offset,
                64, 64};
    const test::RandomData data(mod->program, at, random);
    const test::HostArguments arguments(folded.mod, at);
    const test::TabulatedValues tabulated(module, arguments, attention);
    const auto is_nan = [](float x) { return std::isnan(x); };
    CHECK(std::ranges::none_of(tabulated.of_keys, is_nan));
    CHECK(std::ranges::none_of(tabulated.of_distances, is_nan));

    const int head = below(8), warp_row = 16 * below((attention.q_len + 15) / 16);
    const auto count = static_cast<std::size_t>(tiles * kRows * keys);
    std::vector<float> products(count), weights(count), references(tiles * 32 * 2), sinks(32 * 2);
    for (float& product : products)
        product = static_cast<float>(test::random_real(random) * one.spread);
    module.function<Function>("run")(arguments.words(), &attention, head, warp_row, tiles,
                                     products.data(), weights.data(), references.data(),
                                     sinks.data());

    const bool is_bounded = module.function<bool()>("is_bounded")();
    at.b = head / 4;
    at.h = head % 4;
    at.h_kv = at.h / 2;
    // A float's exponent leaves less than a millionth of a weight, and of large scores more.
    const double rounding = 5e-6 * std::max(1.0, one.spread / 4);
    int wrong = 0, seen = 0;
    std::array<float, 64> largest{}; // of a thread's row in the block of keys that comes first
    for (int tile = 0; tile < tiles; ++tile)
        for (int row = 0; row < kRows; ++row)
            for (int column = 0; column < keys; ++column) {
                const int q = warp_row + row, kv = tile * keys + column;
                if (q >= attention.q_len) continue;
                const auto place = static_cast<std::size_t>((tile * kRows + row) * keys + column);
                const int lane = row % 8 * 4 + column % 8 / 2;
                const auto level = static_cast<std::size_t>((tile * 32 + lane) * 2 + row / 8);
                at.q_idx = q + attention.q_offset;
                at.kv_idx = kv + attention.kv_offset;
                at.score = products[place] * attention.scale;
                double expected = 0;
                if (kv < kv_len && ir::evaluate_boolean(mod->program, mod->mask, at)) {
                    const double score = ir::evaluate_real(mod->program, mod->score, at);
                    // A row that has seen nothing yet has no level.
                    if (!std::isinf(score))
                        expected = std::exp2(score * 1.4426950408889634 -
                                             static_cast<double>(references[level]));
                    ++seen;
                    float& most = largest[static_cast<std::size_t>(lane * 2 + row / 8)];
                    if (tile == tiles - 1) most = std::max(most, weights[place]);
                }
                const double tolerance = rounding * std::max(1.0, expected);
                // Levels follow, but for logits that are known to be small.
                if (!is_bounded && weights[place] > 128) ++wrong;
                if (!(std::abs(expected - weights[place]) <= tolerance)) ++wrong;
            }
    // A sink's weight is that of a score of its size, beside the block that came last.
    for (std::size_t i = 0; i < sinks.size(); ++i)
        if (std::isfinite(references[i]))
            CHECK(sinks[i] ==
                  doctest::Approx(0.5 * 1.4426950408889634 - references[i]).epsilon(1e-5));
    CHECK(wrong == 0);
    CHECK(seen > 0);
    // Else it would be rounded, and with it all there is of rows that see few keys.
    CHECK(std::ranges::all_of(
        largest, [&](float most) { return most == 0 || std::abs(most - 1) <= rounding; }));
}

} // namespace

TEST_CASE("what is staged for a grid of keys adds up to the mod") {
    const std::string tables = "buffer s: f32[B, H, Q_LEN, N]\nbuffer t: bf16[B, H, Q_LEN, M]\n";
    const auto both = [&](int width) {
        const std::string w = std::to_string(width);
        return tables + "score_mod = score + s[b, h, q_idx - 4, kv_idx // " + w +
               "] + t[b, h, q_idx - 4, kv_idx % " + w + "]";
    };
    std::mt19937 random(test::fresh_seed());
    // A compile each: some of the widths that divide a tile of keys, or whose rows end inside it.
    std::vector<int> widths = {7, 8, 10, 12, 14, 16, 20, 28, 32, 40, 56, 64};
    std::ranges::shuffle(widths, random);
    for (const int width : std::span(widths).first(5))
        check({both(width), width}, random);
    const Case cases[] = {
        {both(14) + "\nmask_mod = q_idx + 70 >= kv_idx", 14},
        {both(64) + " + (q_idx - kv_idx) * 0.01", 64},
        {both(14) + " - (q_idx - kv_idx) * 0.01", 14},
        {both(16) + " + abs(q_idx - kv_idx) * 0.02", 16},
        {tables + "score_mod = 3 * tanh((score * 2 + s[b, h, q_idx, kv_idx // 32] - "
                  "t[b, h, q_idx, kv_idx % 32] * h) / 3)",
         32},
        {tables + "score_mod = 3 * tanh((score - s[b, h, q_idx, kv_idx // 14]) / 3)", 14},
        {"score_mod = score - (abs(q_idx // 16 - kv_idx // 16) + abs(q_idx % 16 - kv_idx % 16)) "
         "* (h + 1) * 0.1",
         16},
        {tables + "score_mod = score + s[b, h, q_idx % 4, kv_idx // 96]", 96},
        {tables +
             "score_mod = score + (-inf if (q_idx + kv_idx // 64) % 2 == 0 else s[b, h, q_idx, "
             "kv_idx // 64]) + t[b, h, q_idx, kv_idx % 64]",
         64},
        {both(14) + " + s[b, 1, 3, kv_idx // 9] - t[b, h, min(abs(q_idx - kv_idx), 5), h]", 14},
        {tables + "score_mod = score - (t[b, h, q_idx, kv_idx % 48] + 1) / 4", 48},
        {tables + "score_mod = score + s[b, h, q_idx, kv_idx // 64 % 3] + "
                  "t[b, h, kv_idx // 128, kv_idx % 64]",
         64},
    };
    for (const Case& one : cases)
        check(one, random);
}

TEST_CASE("running maxima rise with the scores of later blocks, by more than P may be") {
    const std::string tables = "buffer s: f32[B, H, Q_LEN, N]\nbuffer t: bf16[B, H, Q_LEN, M]\n";
    const Case cases[] = {
        {"score_mod = score", 0, 4},
        {"score_mod = score", 0, 100},
        {"mask_mod = q_idx + 20 >= kv_idx", 0, 100},
        {tables + "score_mod = score + s[b, h, q_idx, kv_idx // 64] + t[b, h, q_idx, kv_idx % 64]",
         64, 100},
        {tables + "score_mod = score - s[b, h, q_idx, kv_idx // 14]", 14, 100},
        {"score_mod = score + (q_idx - kv_idx) * 0.01", 0, 100},
        {"score_mod = score + (q_idx - kv_idx) * (h - 2) * 0.25", 0, 100},
        {"score_mod = score + (q_idx - kv_idx) * 0.5\nmask_mod = q_idx + 20 >= kv_idx", 0, 100},
        {"score_mod = score * (h - 3) + q_idx * 0.1", 0, 100},
        {"buffer c: f32[KV_LEN]\nscore_mod = score * (h - 3) * 0.5 + c[kv_idx]", 0, 100},
        {"buffer t: f32[H, N]\nscore_mod = score * 3 + 20 * t[h, q_idx - kv_idx]", 0, 100},
    };
    std::mt19937 random(test::fresh_seed());
    for (const Case& one : cases)
        check(one, random);
}

TEST_CASE("what is computed before for keys and distances adds up to the mod") {
    const std::string vectors =
        "buffer c: bf16[B, H, KV_LEN]\nbuffer t: f32[H, N]\nbuffer a: f32[Q_LEN]\n";
    const std::string texts[] = {
        vectors + "score_mod = score + c[b, h, kv_idx]",
        vectors + "score_mod = score + (-inf if kv_idx % 5 == 2 else c[b, h, kv_idx])",
        vectors + "score_mod = score * 2 + c[b, h, kv_idx] + q_idx * 0.1",
        vectors + "score_mod = score + c[b, h, q_idx % 3]\nmask_mod = q_idx + 30 >= kv_idx",
        vectors + "score_mod = score + (-inf if q_idx % 3 == 0 else t[h, 1])",
        vectors + "score_mod = score * 0.3 - c[b, h, kv_idx] + a[q_idx] * kv_idx * 0.01",
        vectors + "score_mod = score + t[h, min(abs(q_idx - kv_idx), N - 1)]",
        vectors + "score_mod = score * 2 + t[h, q_idx - kv_idx]",
        vectors + "score_mod = score - c[b, 0, kv_idx] * 2 - t[h, kv_idx - q_idx] + "
                  "(q_idx - kv_idx) * 0.01\nmask_mod = q_idx + 30 >= kv_idx",
        vectors + "score_mod = 3 * tanh((score + c[b, h, kv_idx] + t[1, kv_idx - q_idx]) / 3)",
        vectors + "score_mod = score + log(1 + abs(q_idx - kv_idx)) + c[b, h, kv_idx] * "
                  "t[h, (q_idx + kv_idx) % 5]",
        vectors + "score_mod = score * c[b, h, kv_idx] * t[h, q_idx - kv_idx]",
        vectors + "score_mod = score * t[h, 0]\nmask_mod = q_idx + 30 >= kv_idx",
        vectors + "score_mod = score * t[h, 0] - 2 * c[b, h, kv_idx] + a[q_idx]",
        vectors + "score_mod = score * (0.0 if q_idx % 3 == 0 else a[q_idx]) + t[h, q_idx % 5]\n"
                  "mask_mod = q_idx + 30 >= kv_idx",
        vectors + "score_mod = c[b, h, kv_idx] - 0.7 * score\n"
                  "mask_mod = q_idx + 30 >= kv_idx",
        vectors + "score_mod = score * (0.0 if h % 2 == 0 else -1.0) + c[b, h, kv_idx]\n"
                  "mask_mod = q_idx + 30 >= kv_idx",
        vectors + "score_mod = score * 2 + t[h, q_idx - kv_idx] * 0.5 + a[q_idx]\n"
                  "mask_mod = q_idx + 30 >= kv_idx",
        vectors + "score_mod = score * 0.5 + (kv_idx - q_idx) * 0.01 * t[h, 1] + a[q_idx]",
        vectors + "score_mod = score + a[q_idx] * c[b, h, kv_idx]",
        vectors + "score_mod = score * 2 - a[q_idx] * c[b, h, kv_idx] * t[h, 1] + a[q_idx] + "
                  "t[h, q_idx] * c[b, 1, kv_idx] + c[b, h, kv_idx]\n"
                  "mask_mod = q_idx + 30 >= kv_idx",
        vectors + "buffer k: i32[KV_LEN]\nbuffer f: u8[KV_LEN]\n"
                  "score_mod = (score if f[kv_idx] > 1 else score * 0.5) + "
                  "(t[h, q_idx] if k[kv_idx] == 3 else min(t[h, q_idx - kv_idx], score))",
    };
    std::mt19937 random(test::fresh_seed());
    for (const std::string& text : texts)
        check({text, 0}, random);
}

TEST_CASE("what is added for rows of a grid comes with the products") {
    struct Decision {
        std::string score;
        bool multiplies;
    };
    const std::string row = "s[b, h, q_idx, kv_idx // 64]";
    for (const Decision& one : {Decision{"score + " + row, true},
                                {"score + 2 * " + row + " + s[b, h, q_idx, kv_idx % 64]", true},
                                {"score + " + row + " + s[b, h, 0, kv_idx]", true},
                                {"score + s[b, h, q_idx, kv_idx % 64]", false},
                                {"score + s[b, h, q_idx, kv_idx // 32]", false},
                                {"score * 2 + " + row, false},
                                {"score * s[b, h, q_idx, 0] + " + row, false},
                                {"score + " + row + " + q_idx * 0.1", false},
                                {"9 * tanh((score + " + row + ") / 9)", false}}) {
        CAPTURE(one.score);
        const auto mod = test::lower_text(
            "buffer s: bf16[B, H, Q_LEN, N]\nscore_mod = " + one.score, 64, 64, false);
        REQUIRE(mod.has_value());
        plan::KernelRequest request{.arch = 90, .dtype = DType::bf16, .has_score_mod = true};
        request.terms.by_index_2d.keys = index_2d_of(*mod);
        CHECK(plan::sm90::forward_of(plan::candidates(request).front())
                  ->sizes.multiplies_index_2d_rows == one.multiplies);
        request.dtype = DType::f16; // whose range is that of no float
        CHECK(!plan::sm90::forward_of(plan::candidates(request).front())
                   ->sizes.multiplies_index_2d_rows);
    }
}

TEST_CASE("what is added by key comes with the products, and rows have offsets") {
    struct Decision {
        std::string score;
        bool multiplies, alone;
    };
    for (const Decision& one :
         {Decision{"score + c[kv_idx]", true, true},
          {"score - 2 * c[kv_idx] + log(1 + kv_idx) * h", true, true},
          {"score + (-inf if kv_idx > 9 else 0.0)", true, true},
          {"score + c[kv_idx] + 0.1 * q_idx", true, true},
          {"score * 2 - c[kv_idx]", true, true},
          {"score + c[kv_idx] + 0.1 * (q_idx - kv_idx)", false, false},
          {"score + c[kv_idx] + abs(q_idx - kv_idx)", false, false},
          {"score + c[kv_idx] + bias[q_idx, kv_idx]", true, false},
          {"score + c[kv_idx] + bias[q_idx, kv_idx] + c[q_idx]", true, false},
          {"score + c[kv_idx] + bias[q_idx, kv_idx] + c[h] * kv_idx", false, false},
          {"score + c[kv_idx] + sqrt(q_idx * kv_idx)", false, false},
          {"9 * tanh((score + c[kv_idx]) / 9)", false, false},
          {"score + 0.1 * q_idx + c[h]", false, true},
          {"score * 2", false, true},
          {"score", false, false},
          {"c[kv_idx] - score", true, true},
          {"score * 1e6 + c[kv_idx]", true, true},
          {"score * c[h] + c[kv_idx]", true, true},
          {"score * c[q_idx] + c[kv_idx]", false, false},
          {"score * c[q_idx] + c[h]", false, true},
          {"score * c[h]", false, true},
          {"score + kv_idx * 0.1", false, false},
          {"score * c[kv_idx]", false, false},
          {"score - c[q_idx] * 2 * c[kv_idx] + c[q_idx] * sqrt(c[kv_idx])", false, true},
          {"score + c[q_idx] * c[kv_idx] + c[kv_idx] + c[q_idx]", false, true},
          {"score * c[h] + c[q_idx] * c[kv_idx]", false, false},
          {"score + c[q_idx] * c[kv_idx] + bias[q_idx, kv_idx]", false, false},
          {"score + tanh(c[q_idx] * c[kv_idx])", false, false},
          {"9 * tanh((score + c[q_idx] * c[kv_idx]) / 9)", false, false}}) {
        CAPTURE(one.score);
        const auto mod = test::lower_text(
            "buffer c: f32[KV_LEN]\nbuffer bias: f32[Q_LEN, KV_LEN]\nscore_mod = " + one.score, 64,
            64, false);
        REQUIRE(mod.has_value());
        const passes::DecomposedMod folded = passes::decompose_score(*mod);
        CHECK(passes::multiplies_key_addend(folded.mod, folded.parts) == one.multiplies);
        CHECK(passes::adds_keys_alone(folded.mod, folded.parts) == one.alone);
    }
}

TEST_CASE("tiles of keys that no grid fits") {
    for (const char* text :
         {"score + kv_idx // 6", "score + kv_idx % 5 * 0.5", "score + (kv_idx + 1) // 64",
          "score + kv_idx % 128 * 0.01", "score + kv_idx // 13", "score * (kv_idx // 64)",
          "param w: i32 = 64\nscore_mod = score + kv_idx // w"}) {
        CAPTURE(text);
        auto mod = test::lower_text(text, 64, 64, false);
        REQUIRE(mod.has_value());
        CHECK(index_2d_of(*mod).width == 0);
    }
}
