#include <array>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <sstream>

#include <doctest/doctest.h>

#include "distance_program.h"
#include "fresh_seed.h"
#include "ir/interp.h"
#include "passes/dense_bias.h"
#include "passes/distance_value.h"
#include "passes/gradient_sum.h"
#include "program_of.h"
#include "random_program.h"
#include "support/text.h"

using namespace flexc;
using passes::GradientSum;

namespace {

// Of the first read of a grad buffer.
GradientSum sum_of(const std::string& score, const passes::PipelineOptions& options = {}) {
    const passes::Mod mod = test::lowered(
        "buffer t: f32[H, N] grad\nbuffer at: i32[KV_LEN]\nscore_mod = " + score, options);
    REQUIRE(!mod.gradients.empty());
    return passes::gradient_sum(mod, mod.gradients[0]);
}

} // namespace

TEST_CASE("the sum of a gradient follows from what the read's indices use") {
    CHECK(sum_of("score + t[h, 0] * kv_idx") == GradientSum::head);
    CHECK(sum_of("score * t[h, b] * kv_idx") == GradientSum::head);
    CHECK(sum_of("score + t[h, q_idx // 2] * kv_idx") == GradientSum::query);
    CHECK(sum_of("score + t[h, at[kv_idx]]") == GradientSum::key);
    CHECK(sum_of("score + t[h, q_idx + kv_idx]") == GradientSum::element);
    CHECK(sum_of("score + t[h, int(score)]") == GradientSum::element);
}

TEST_CASE("what is added to a whole row has the gradient of its lse") {
    for (const char* score :
         {"score + t[h, 0]", "score - t[h, at[q_idx]] * q_idx", "score * 2 + tanh(t[0, q_idx])",
          "score + t[b, 0] if q_idx > 3 else score * kv_idx", "tanh(score) - t[h, 0] / q_idx",
          "score * kv_idx + t[h, 0] + kv_idx // 2"}) {
        CAPTURE(score);
        CHECK(sum_of(score) == GradientSum::row);
    }
    const passes::PipelineOptions part{.rows_are_whole = false};
    CHECK(sum_of("score + t[h, 0]", part) == GradientSum::head);
    CHECK(sum_of("score + t[h, q_idx]", part) == GradientSum::query);
    CHECK(sum_of("score + t[h, 0] if kv_idx > 3 else score") == GradientSum::head);
    CHECK(sum_of("tanh(score + t[h, q_idx])") == GradientSum::query);
    CHECK(sum_of("clamp(score + t[h, q_idx], -2, 2)") == GradientSum::query);
    CHECK(sum_of("score + t[h, q_idx] if score > 0 else score") == GradientSum::query);
    CHECK(sum_of("score + t[h, q_idx] * int(score)") == GradientSum::query);
    CHECK(sum_of("score + t[h, kv_idx]") == GradientSum::key);
    CHECK(sum_of("score + sum(i in 0..N: t[h, i + q_idx])") == GradientSum::terms);
}

TEST_CASE("a line of the row hides none of its elements") {
    const auto is_line = [](const std::string& score) {
        return test::lowered("buffer t: f32[H, N] grad\nscore_mod = " + score).is_line_of_row;
    };
    CHECK(is_line("score * t[h, q_idx]"));
    CHECK(is_line("(score - t[h, 0]) / t[b, q_idx] if q_idx > 3 else score"));
    CHECK_FALSE(is_line("score + t[h, kv_idx]"));
    CHECK_FALSE(is_line("score * t[h, 0] if q_idx > kv_idx else -inf"));
    CHECK_FALSE(is_line("log(score) * t[h, 0]"));
}

TEST_CASE("what multiplies a row or a head is summed by element, in floats") {
    for (const char* score :
         {"score * t[h, b]", "score / t[h, 0]", "(score + q_idx) / (1 + t[h, 0]) - kv_idx",
          "score * t[h, 0] * q_idx if q_idx > 3 else score", "score * score * t[h, 0]",
          "floor(score) * t[h, 0] + score"}) {
        CAPTURE(score);
        CHECK(sum_of(score) == GradientSum::head);
    }
    for (const char* score : {"score * t[h, q_idx]", "score * t[h, q_idx] if q_idx > 3 else score",
                              "score * t[h, q_idx] * kv_idx", "(score + kv_idx) * t[h, q_idx]"}) {
        CAPTURE(score);
        CHECK(sum_of(score) == GradientSum::query);
    }
}

TEST_CASE("positions may enter by their difference, whatever is done with it") {
    for (const char* index :
         {"q_idx - kv_idx", "kv_idx - q_idx + N // 2", "(q_idx + 3) - (kv_idx - KV_LEN)",
          "abs(q_idx - kv_idx)", "clamp(q_idx - kv_idx, 0, 7)", "int(log(max(q_idx - kv_idx, 1)))",
          "at[max(q_idx - kv_idx, 0)]", "q_idx + q_idx - kv_idx - kv_idx"}) {
        CAPTURE(index);
        CHECK(sum_of(formatted("score + t[h, {}]", index)) == GradientSum::distance);
    }
    for (const char* index : {"2 * q_idx - kv_idx", "q_idx - kv_idx // 2", "max(q_idx, kv_idx)",
                              "q_idx - kv_idx + at[kv_idx]", "q_idx * q_idx - kv_idx * kv_idx"}) {
        CAPTURE(index);
        CHECK(sum_of(formatted("score + t[h, {}]", index)) == GradientSum::element);
    }
}

TEST_CASE("a diagonal of dS is a read's gradient where the derivatives' ratio is of the distance") {
    for (const char* score :
         {"3 * tanh((score + t[h, q_idx - kv_idx]) / 3)", "score + 2 * t[h, q_idx - kv_idx]",
          "score * 3 - t[h, q_idx - kv_idx]", "score + tanh(t[h, q_idx - kv_idx])",
          "(score + exp(t[h, q_idx - kv_idx])) * (h + 1)",
          "4 * tanh((score + exp(t[h, abs(q_idx - kv_idx)])) / 4)",
          "score + sqrt(abs(q_idx - kv_idx)) * t[h, q_idx - kv_idx]"}) {
        CAPTURE(score);
        CHECK(sum_of(score) == GradientSum::distance);
    }
    for (const char* score :
         {"score * t[h, q_idx - kv_idx]", "score + kv_idx * t[h, q_idx - kv_idx]",
          "score * h + t[h, q_idx - kv_idx]", "score * score + t[h, q_idx - kv_idx]"}) {
        CAPTURE(score);
        CHECK(sum_of(score) == GradientSum::element);
    }
}

TEST_CASE("what is dear for a head's number is found once for a distance") {
    for (const char* score : {"score - t[h, 0] * log(1 + abs(q_idx - kv_idx))",
                              "score + exp(-t[h, 0] * abs(q_idx - kv_idx))",
                              "score - (abs(q_idx - kv_idx) + 1) ** t[h, 0]",
                              "5 * tanh((score - log(1 + t[h, 0] * abs(q_idx - kv_idx))) / 5)"}) {
        CAPTURE(score);
        CHECK(sum_of(score) == GradientSum::distance);
    }
    for (const char* score :
         {"score + t[h, 0] * (q_idx - kv_idx)", "score - t[h, 0] * abs(q_idx - kv_idx)",
          "score * t[h, 0] + log(1 + abs(q_idx - kv_idx))",
          "score + t[h, 0] * log(1 + q_idx * kv_idx)"}) {
        CAPTURE(score);
        CHECK(sum_of(score) == GradientSum::head);
    }
}

TEST_CASE("a dense bias keeps the warps that copy it from sums for heads") {
    const auto sums_of = [](const std::string& more) {
        const passes::Mod mod =
            test::lowered("buffer m: bf16[Q_LEN, KV_LEN]\nbuffer p: f32[H] grad\n"
                          "score_mod = score - log(1 + p[h] * abs(q_idx - kv_idx))" +
                          more);
        REQUIRE(mod.gradients.size() == 1);
        return passes::gradient_sum(mod, mod.gradients[0]);
    };
    CHECK(sums_of("") == GradientSum::distance);
    CHECK(sums_of(" + m[q_idx, kv_idx]") == GradientSum::head);
}

TEST_CASE("a derivative that is one number for a head divides what it is no factor of") {
    const auto sums_of = [](const std::string& score, bool divides) {
        passes::PipelineOptions options;
        options.divides_by_derivative = divides;
        const passes::Mod mod = test::lowered(
            "buffer a: f32[H]\nbuffer t: f32[H, N] grad\nscore_mod = " + score, options);
        std::vector<GradientSum> sums;
        for (const passes::ReadGradient& gradient : mod.gradients)
            sums.push_back(passes::gradient_sum(mod, gradient));
        return sums;
    };
    const std::vector<GradientSum> diagonals = {GradientSum::distance},
                                   elements = {GradientSum::element};
    CHECK(sums_of("score * a[h] + t[h, abs(q_idx - kv_idx)]", true) == diagonals);
    CHECK(sums_of("score * a[h] + t[h, abs(q_idx - kv_idx)]", false) == elements);
    CHECK(sums_of("score * a[q_idx] + t[h, abs(q_idx - kv_idx)]", true) == elements);
    CHECK(sums_of("score * a[h] * t[h, abs(q_idx - kv_idx)]", true) == elements);
    CHECK(sums_of("score * a[h] + sum(i in 0..N: t[h, i] * sqrt(abs(q_idx - kv_idx) + i))", true) ==
          diagonals);
    CHECK(sums_of("score * a[h] + sum(i in 0..N: t[h, i] * sqrt(kv_idx + i))", true) ==
          std::vector{GradientSum::terms});
}

TEST_CASE("elements that add no multiple of dS to a distance have a tile that is summed") {
    const auto sums_of = [](const std::string& score) {
        const passes::Mod mod =
            test::lowered("buffer g: f32[H, Q_LEN] grad\nbuffer t: f32[H, 99] grad\n"
                          "buffer u: f32[9, 9] grad\nbuffer m: f32[Q_LEN, KV_LEN] grad\n"
                          "score_mod = " +
                          score);
        std::string text;
        for (const passes::ReadGradient& gradient : mod.gradients)
            text +=
                std::string(gradient.is_weighted ? "weighted " : "") +
                std::string(name(passes::gradient_sum(mod, gradient, passes::fused_sums(mod)))) +
                "; ";
        return text;
    };
    const std::string read = "t[h, abs(q_idx - kv_idx)]";
    CHECK(sums_of("score * " + read) == "weighted distance; ");
    CHECK(sums_of("score + tanh(score * " + read + ")") == "weighted distance; ");
    CHECK(sums_of("score + g[h, q_idx] * " + read) == "query; weighted distance; ");
    CHECK(sums_of("score * (" + read + " + t[h, q_idx - kv_idx])") ==
          "weighted distance; weighted distance; ");
    // One partial has a tile; elements add another in memory.
    CHECK(sums_of("score * " + read + " + tanh(t[h, q_idx - kv_idx])") ==
          "weighted distance; element; ");
    // Warps sum one of both tiles, and tables in one way.
    CHECK(sums_of("score + g[h, q_idx] * " + read + " + t[h, q_idx - kv_idx]") ==
          "query; element; distance; ");
    CHECK(sums_of("score * (" + read + " + u[q_idx % 9, kv_idx % 9])") ==
          "weighted table; weighted table; ");
    // A dense bias waits for no tile.
    CHECK(sums_of("score * " + read + " + m[q_idx, kv_idx]") == "weighted distance; element; ");
    CHECK(sums_of("score * t[h, int(score)]") == "element; ");
}

TEST_CASE("a table is summed on chip where dS times a number of the head is its gradient") {
    const auto sum_in = [](const std::string& score, bool divides) -> std::string_view {
        passes::PipelineOptions options;
        options.divides_by_derivative = divides;
        const passes::Mod mod = test::lowered("buffer a: f32[H]\nbuffer t: f32[H, 31, 31] grad\n"
                                              "score_mod = " +
                                                  score,
                                              options);
        REQUIRE(mod.gradients.size() == 1);
        if (!mod.gradients[0].is_of_table || !passes::sums_tables(mod)) return "elements";
        return passes::weighs_tables(mod) ? "tiles of its own" : "dS";
    };
    const std::string read = "t[h, q_idx // 16 - kv_idx // 16 + 15, q_idx % 16 - kv_idx % 16 + 15]";
    CHECK(sum_in("score + a[h] * " + read, false) == "dS");
    CHECK(sum_in("8 * tanh((score + exp(a[h]) * " + read + ") / 8)", false) == "dS");
    CHECK(sum_in("score * a[h] + " + read, true) == "dS");
    CHECK(sum_in("score * a[h] + " + read, false) == "tiles of its own");
    CHECK(sum_in("score + a[h] * kv_idx * " + read, true) == "tiles of its own");
    CHECK(sum_in("score + tanh(" + read + ")", true) == "tiles of its own");
    CHECK(sum_in("score * " + read, true) == "tiles of its own");
    CHECK(sum_in("score + t[h, int(score), 0]", true) == "elements");
    // Generic kernels sum tables, and what is one for a distance, from the tile of dS, or from one
    // of what elements add instead.
    const auto few_entries = [](const std::string& score, bool deterministic = false) {
        passes::PipelineOptions options;
        options.deterministic = deterministic;
        return passes::count_few_entries(
            test::lowered("buffer a: f32[H]\nbuffer s: f32[H] grad\nbuffer t: f32[H, 99] grad\n"
                          "buffer m: f32[Q_LEN, KV_LEN] grad\nscore_mod = " +
                              score + " + s[h] + m[q_idx, kv_idx]",
                          options));
    };
    CHECK(few_entries("score + t[h, q_idx - kv_idx] + t[h, q_idx] - 2 * t[h, kv_idx]") == 1);
    CHECK(few_entries("score + a[h] * t[h, min(abs(q_idx - kv_idx), 98)]") == 1);
    CHECK(few_entries("score + t[h, abs(q_idx // 8 - kv_idx // 8)]") == 1);
    CHECK(few_entries("score + t[h, q_idx - kv_idx]", true) == 0);
    CHECK(few_entries("score + where(q_idx > kv_idx, t[h, q_idx - kv_idx], 0)") == 1);
    CHECK(few_entries("score * t[h, q_idx]") == 0);
    CHECK(few_entries("score + (q_idx - kv_idx) * t[h, q_idx - kv_idx]") == 1);
    CHECK(few_entries("score * t[h, abs(q_idx // 8 - kv_idx // 8)] + t[h, abs(q_idx - kv_idx)]") ==
          1);
    CHECK(few_entries("score + tanh(t[h, kv_idx])") == 0);
    CHECK(few_entries("score + t[h, int(score)]") == 0);
    // Where nobody sums tables, elements go to memory; the factor makes them none of diagonals.
    const passes::Mod wide =
        test::lowered("buffer g: i64[KV_LEN]\nbuffer t: f32[H, 9] grad\n"
                      "score_mod = score + 2 * t[h, g[kv_idx] * 5 + g[q_idx]]");
    REQUIRE(wide.gradients.size() == 1);
    CHECK(passes::gradient_sum(wide, wide.gradients[0]) == GradientSum::element);
}

TEST_CASE("tables that are no multiples of dS share tiles of one partial") {
    const auto weighted = [](const std::string& score, bool deterministic = false) {
        passes::PipelineOptions options;
        options.deterministic = deterministic;
        const passes::Mod mod =
            test::lowered("buffer t: f32[H, 9, 9] grad\nbuffer u: f32[H, 9] grad\nbuffer c: "
                          "f32[KV_LEN] grad\nbuffer r: f32[H, 99] grad\nbuffer g: "
                          "i32[KV_LEN]\nscore_mod = " +
                              score,
                          options);
        std::string names;
        for (const passes::ReadGradient& gradient : mod.gradients)
            names += gradient.is_weighted ? 'w' : gradient.is_of_table ? 't' : '-';
        return names;
    };
    const std::string kinds = "t[h, g[q_idx], g[kv_idx]]";
    const std::string other = "u[h, abs(g[q_idx] - g[kv_idx])]";
    CHECK(weighted("score * " + kinds) == "w");
    CHECK(weighted("score * " + kinds, true) == "-");
    CHECK(weighted("score * (" + kinds + " + " + other + ")") == "ww");
    CHECK(weighted("score * " + kinds + " + " + other) == "w-");
    CHECK(weighted("score * " + kinds + " + c[kv_idx]") == "w-");
    // The warps that sum have dS or other tiles.
    CHECK(weighted("score + " + kinds + " * " + kinds + " + " + other) == "-t");
    CHECK(weighted("score + " + kinds + " * " + kinds + " + r[h, q_idx - kv_idx]") == "--");
    // Where elements add more gradients than two, the kernel is one that does not weigh.
    CHECK(weighted("score * (" + kinds + " + " + other + " + t[h, g[kv_idx], g[q_idx]])") == "---");
}

TEST_CASE("beside a table, what is read by distance is summed as a table") {
    const auto sums_of = [](const std::string& score, bool deterministic = false) {
        passes::PipelineOptions options;
        options.deterministic = deterministic;
        const passes::Mod mod = test::lowered(
            "buffer t: f32[H, 99] grad\nbuffer r: f32[H, 31, 31] grad\nbuffer a: f32[H] grad\n"
            "buffer g: i32[KV_LEN]\nbuffer k: f32[H, 5, 5] grad\nscore_mod = score + " +
                score,
            options);
        std::string names;
        for (const passes::ReadGradient& gradient : mod.gradients)
            names += std::string(names.empty() ? "" : " ") +
                     std::string(passes::name(passes::gradient_sum(
                         mod, gradient,
                         {.sums_tables = passes::sums_tables(mod),
                          .sums_grids = passes::sums_grids(mod) && !mod.digit_places.empty()})));
        return names;
    };
    const std::string kinds = "k[h, g[q_idx], g[kv_idx]]";
    const std::string grid = "r[h, q_idx // 16 - kv_idx // 16 + 15, q_idx % 16 - kv_idx % 16 + 15]";
    CHECK(sums_of("t[h, q_idx - kv_idx]") == "distance");
    CHECK(sums_of(kinds + " + t[h, q_idx - kv_idx]") == "table table");
    CHECK(sums_of(kinds + " + a[h] * t[h, min(abs(q_idx - kv_idx), 98)]") == "table head table");
    CHECK(sums_of(kinds + " + t[h, q_idx - kv_idx] + t[h, kv_idx]") == "table table key");
    CHECK(sums_of(grid + " + " + kinds + " + t[h, q_idx - kv_idx]") == "table table table");
    // In an order, elements are added to exact sums.
    CHECK(sums_of(kinds + " + t[h, q_idx - kv_idx]", true) == "element distance");
    // Only a read has entries, and their factor is one for a head.
    CHECK(sums_of(kinds + " + (q_idx - kv_idx) * t[h, q_idx - kv_idx]") == "element distance");
}

TEST_CASE("gradients by differences of digits are summed by distance and by what digits borrow") {
    const auto places_of = [](const std::string& text, bool deterministic = false) {
        passes::PipelineOptions options;
        options.deterministic = deterministic;
        const passes::Mod mod = test::lowered(text, options);
        std::vector<std::int64_t> widths;
        if (!passes::sums_grids(mod)) return widths;
        for (const passes::DigitPlace& place : mod.digit_places)
            widths.push_back(place.width);
        for (const passes::ReadGradient& gradient : mod.gradients)
            CHECK(passes::gradient_sum(mod, gradient, {.sums_grids = true}) ==
                  GradientSum::distance);
        return widths;
    };
    const std::string t = "buffer t: f32[H, 127, 127] grad\nscore_mod = score + ";
    const auto image = [&](const std::string& w, const std::string& position = "q_idx") {
        return "t[h, " + position + " // " + w + " - kv_idx // " + w + " + 63, " + position +
               " % " + w + " - kv_idx % " + w + " + 63]";
    };
    using Widths = std::vector<std::int64_t>;
    CHECK(places_of(t + image("64")) == Widths{64});
    CHECK(places_of(t + image("64"), true) == Widths{64});
    CHECK(places_of(t + "2 * " + image("24")) == Widths{24});
    CHECK(places_of(t + image("24", "(q_idx + 8)")) == Widths{24});
    CHECK(places_of(t + image("24") + " + t[h, 0, abs(q_idx - kv_idx)]") == Widths{24});
    CHECK(
        places_of("buffer r: f32[H, 64] grad\nbuffer c: f32[H, 64] grad\nscore_mod = score + r[h, "
                  "min(abs(q_idx // 64 - kv_idx // 64), 63)] - c[h, clamp(q_idx % 64 - kv_idx % "
                  "64, 0, 63)]") == Widths{64});
    CHECK(
        places_of("buffer a: f32[9] grad\nscore_mod = score + a[min(abs(q_idx % 64 - kv_idx % 64), "
                  "8)]") == Widths{64});
    CHECK(
        places_of("buffer t: f32[15, 31, 31] grad\nscore_mod = score + t[q_idx // 256 - kv_idx // "
                  "256 + 7, q_idx // 16 % 16 - kv_idx // 16 % 16 + 15, q_idx % 16 - kv_idx % 16 + "
                  "15]")
            .size() == 2);
    // Digits begin anywhere, and tokens beside the image have no part.
    CHECK(places_of(t + image("28")) == Widths{28});
    CHECK(places_of(t + image("24", "(q_idx + 4)")) == Widths{24});
    CHECK(places_of(t + "where(q_idx < 5 or kv_idx < 5, 0, " + image("37") + ")") == Widths{37});
    CHECK(places_of("buffer g: bool[Q_LEN]\n" + t + "where(g[q_idx] and not (kv_idx < 5), 2 * " +
                    image("64") + ", 0)") == Widths{64});
    CHECK(places_of("buffer r: f32[64] grad\n" + t + image("11") +
                    " + r[abs(q_idx // 33 - kv_idx // 33)]")
              .size() == 2);
    // Digits of two grids, or of one that is too narrow; conditions on both positions, of one read
    // of two, and beside a read by distance.
    CHECK(places_of("buffer r: f32[64] grad\n" + t + image("37") +
                    " + r[abs(q_idx // 20 - kv_idx // 20)]")
              .empty());
    CHECK(places_of(t + image("7")).empty());
    CHECK(places_of(t + "where(q_idx < kv_idx, 0, " + image("64") + ")").empty());
    CHECK(places_of(t + "where(q_idx < 5, 0, " + image("64") +
                    ") + t[h, 0, min(abs(q_idx % 64 - "
                    "kv_idx % 64), 126)]")
              .empty());
    CHECK(places_of(t + "where(q_idx < 5, 0, " + image("64") + ") + t[h, 0, abs(q_idx - kv_idx)]")
              .empty());
    // Few tokens, a factor of elements, and a table of kinds beside it.
    CHECK(
        places_of("buffer t: f32[15, 15] grad\nscore_mod = score + t[q_idx // 8 - kv_idx // 8 + 7, "
                  "q_idx % 8 - kv_idx % 8 + 7]")
            .empty());
    CHECK(places_of(t + "score * " + image("64")).empty());
    CHECK(places_of("buffer g: i32[Q_LEN]\nbuffer u: f32[9, 9] grad\n" + t + image("64") +
                    " + u[g[q_idx], g[kv_idx % Q_LEN]]")
              .empty());
}

TEST_CASE("sums of dS times their factors are gradients, for random functions of distance") {
    const std::uint32_t seed = test::fresh_seed();
    test::Random random(seed);
    int factors = 0;
    for (int program = 0; program < 300; ++program) {
        const std::string text = test::distance_program(random);
        CAPTURE(text);
        passes::PipelineOptions options;
        options.divides_by_derivative = program % 2 == 0;
        const passes::Mod mod = test::lowered(text, options);
        test::Instance instance(mod.program, seed + static_cast<std::uint64_t>(program));
        for (const passes::ReadGradient& gradient : mod.gradients) {
            if (gradient.sum_factor == ir::kNoNode) continue;
            ++factors;
            CHECK(passes::gradient_sum(mod, gradient) == GradientSum::distance);
            const std::array roots = {gradient.partial, mod.d_score, gradient.sum_factor};
            for (int point = 0; point < 8; ++point) {
                instance.move();
                ir::Environment at = instance.environment();
                at.counter = point; // of a factor in the term of a sum
                const auto values = ir::evaluate<double>(mod.program, roots, at);
                CHECK(values[mod.d_score].real * values[gradient.sum_factor].real ==
                      doctest::Approx(values[gradient.partial].real).epsilon(1e-5));
            }
        }
    }
    CHECK(factors > 200);
}

TEST_CASE("terms are summed by distance if all of a program's terms that have gradients may be") {
    const auto are_by_distance = [](const std::string& score, bool divides = false) {
        passes::PipelineOptions options;
        options.divides_by_derivative = divides;
        const passes::Mod mod = test::lowered(
            "buffer t: f32[H, N] grad\nbuffer w: f32[H, 16] grad\nbuffer m: f32[16] grad\n"
            "buffer k: f32[KV_LEN] grad\nbuffer u: f32[Q_LEN, KV_LEN] grad\n"
            "buffer s: f32[H] grad\nscore_mod = " +
                score,
            options);
        std::size_t terms = 0, by_distance = 0;
        for (const passes::ReadGradient& gradient : mod.gradients) {
            terms += mod.counters[gradient.read] != ir::kNoNode;
            by_distance += passes::is_of_terms_by_distance(mod, gradient);
        }
        REQUIRE(terms > 0);
        CHECK((by_distance == 0 || by_distance == terms));
        CHECK_FALSE(passes::adds_terms_by_element(mod));
        CHECK(passes::sums_by(mod, GradientSum::terms) == (by_distance == 0));
        return by_distance > 0;
    };
    const std::string mlp =
        "sum(i in 0..16: w[h, i] * relu(m[i] * log(1 + abs(q_idx - kv_idx)) + t[h, i]))";
    CHECK(are_by_distance("score + " + mlp));
    CHECK(are_by_distance("score + k[kv_idx] + " + mlp));
    CHECK(are_by_distance("8 * tanh((score - 2 * " + mlp + ") / 8)"));
    CHECK(are_by_distance("(score + " + mlp + ") * s[h]"));
    CHECK(are_by_distance("score + sum(i in 0..9: m[i])"));
    CHECK(are_by_distance("score + sum(i in 0..9: t[h, max(q_idx - kv_idx, 0) + i])"));
    CHECK(are_by_distance("score + sum(i in 0..N: t[h, i] * exp(-i * abs(q_idx - kv_idx)))"));
    CHECK(are_by_distance("score * s[h] + " + mlp, true));
    CHECK_FALSE(are_by_distance("score * s[h] + " + mlp));
    CHECK_FALSE(are_by_distance("score * " + mlp));
    CHECK_FALSE(are_by_distance("score + k[kv_idx] * " + mlp));
    CHECK_FALSE(are_by_distance("score + u[q_idx, kv_idx] + " + mlp));
    CHECK_FALSE(are_by_distance("score + sum(i in 0..9: m[i] * k[kv_idx + i])"));
    CHECK_FALSE(are_by_distance("score + sum(i in 0..9: m[i] * kv_idx)"));
    CHECK_FALSE(are_by_distance("score + " + mlp + " + sum(i in 0..9: m[i] * score)"));
    CHECK_FALSE(are_by_distance("score + " + mlp + " + sum(i in 0..9: t[h, q_idx + i])"));
}

TEST_CASE("values by distance are the largest that cost more than reading them") {
    const auto count = [](const std::string& score) {
        const passes::Mod mod = test::lowered(
            "buffer p: f32[H]\nbuffer t: f32[N] grad\nbuffer i: i32[N]\nscore_mod = " + score);
        return passes::distance_values(mod).size();
    };
    CHECK(count("score + t[q_idx - kv_idx] + t[abs(kv_idx - q_idx)]") == 2);
    CHECK(count("score * (t[q_idx - kv_idx] + t[abs(kv_idx - q_idx)])") == 1);
    CHECK(count("score + 2 * tanh(t[q_idx - kv_idx])") == 1);
    CHECK(count("score - p[h] * log(1 + abs(q_idx - kv_idx))") == 1);
    CHECK(count("score + i[q_idx - kv_idx]") == 1);
    CHECK(count("score + t[q_idx - kv_idx] * kv_idx") == 1);
    CHECK(count("t[q_idx - kv_idx]") == 1);
    CHECK(count("score + p[h] * (q_idx - kv_idx)") == 0);
    CHECK(count("score + t[q_idx] + t[kv_idx] + t[q_idx + kv_idx]") == 0);
    CHECK(count("score") == 0);
}

TEST_CASE("templates have every class of sum") {
    const auto text_of = [](const std::filesystem::path& file) {
        std::stringstream text;
        text << std::ifstream(file).rdbuf();
        return text.str();
    };
    const std::filesystem::path templates = FLEXC_SOURCE_DIR "/templates";
    const std::string policy = text_of(templates / "policies/read_gradients.cuh");
    const std::size_t first = policy.find("enum class Sum");
    const std::string names = policy.substr(first, policy.find('}', first) - first);
    std::string sums;
    for (const auto& entry : std::filesystem::directory_iterator(templates / "sm90/gradients"))
        sums += text_of(entry.path());
    for (int i = 0; i <= static_cast<int>(GradientSum::element); ++i) {
        const auto sum = static_cast<GradientSum>(i);
        if (sum == GradientSum::batch) continue; // of generic kernels alone
        const std::string name(passes::name(sum));
        CHECK_MESSAGE(std::regex_search(names, std::regex("\\b" + name + "\\b")),
                      "defaults::Sum lacks " << name);
        CHECK_MESSAGE(sums.find("SumOf<mod::Sum::" + name + ">") != std::string::npos,
                      "templates/sm90/gradients has no SumOf<mod::Sum::" << name << ">");
    }
}

TEST_CASE("keys are taken as a grid where one is given") {
    const auto sum_by = [](const std::string& score, int key_width) {
        const passes::Mod mod = test::lowered("buffer t: f32[Q_LEN, N] grad\nscore_mod = " + score);
        REQUIRE(mod.gradients.size() == 1);
        return passes::gradient_sum(mod, mod.gradients[0], {.key_width = key_width});
    };
    CHECK(sum_by("score + t[q_idx, kv_idx // 12]", 12) == GradientSum::quotient);
    CHECK(sum_by("score + t[q_idx, kv_idx // 24 + h]", 12) == GradientSum::quotient);
    CHECK(sum_by("score + t[q_idx, kv_idx % 12]", 12) == GradientSum::remainder);
    CHECK(sum_by("score + t[q_idx, kv_idx % 12]", 0) == GradientSum::element);
    CHECK(sum_by("score + t[q_idx, kv_idx % 12]", 8) == GradientSum::element);
    CHECK(sum_by("score + 2 * t[q_idx, kv_idx % 12]", 12) == GradientSum::element);
    CHECK(sum_by("score + t[0, kv_idx % 12]", 12) == GradientSum::key);
    CHECK(sum_by("score + t[q_idx - kv_idx, 0]", 12) == GradientSum::distance);
}

TEST_CASE("the grid of keys is the one that most gradients fit") {
    const auto width_of = [](const std::string& score) {
        return passes::key_width_of_gradients(test::lowered(
            "buffer t: f32[Q_LEN, N] grad\nbuffer u: f32[Q_LEN, N]\nscore_mod = " + score));
    };
    CHECK(width_of("score + t[q_idx, kv_idx // 12] + t[q_idx, kv_idx % 12]") == 12);
    CHECK(width_of("score + t[q_idx, kv_idx // 5] + t[q_idx, kv_idx % 12] + "
                   "t[q_idx, kv_idx % 6]") == 12);
    CHECK(width_of("score + t[q_idx, kv_idx // 500]") == 125);
    CHECK(width_of("score + t[q_idx, kv_idx // 509]") == 0);
    CHECK(width_of("score + t[q_idx, kv_idx] + u[q_idx, kv_idx // 8]") == 0);
}

TEST_CASE("elements at q and kv themselves are added a tile at a time") {
    const auto sums_of = [](const std::string& score) {
        const passes::Mod mod = test::lowered("buffer m: bf16[H, Q_LEN, KV_LEN] grad\n"
                                              "buffer n: f32[KV_LEN, B, KV_LEN] grad\n"
                                              "buffer t: f32[N] grad\nscore_mod = " +
                                              score);
        std::string names;
        for (const passes::ReadGradient& gradient : mod.gradients)
            names += std::string(name(passes::gradient_sum(mod, gradient))) + " ";
        return names;
    };
    const std::string m = "m[h, q_idx, kv_idx]", n = "n[q_idx, b, kv_idx]";
    CHECK(sums_of("score + " + m) == "dense_bias ");
    CHECK(sums_of("score * 2 - tanh(" + m + ")") == "dense_bias ");
    CHECK(sums_of("score + m[h, kv_idx, q_idx]") == "element ");
    CHECK(sums_of("score + m[h, q_idx, kv_idx + 1]") == "element ");
    CHECK(sums_of("score + m[h + 1, q_idx, kv_idx]") == "element "); // perhaps outside
    CHECK(sums_of("score + m[h, 0, kv_idx]") == "key ");
    // One tile for those with the same derivative, and one alone.
    CHECK(sums_of("score + " + m + " + m[0, q_idx, kv_idx]") == "dense_bias dense_bias ");
    CHECK(sums_of("score + " + m + " - m[0, q_idx, kv_idx]") == "dense_bias element ");
    // Rows of n are keys, and may be fewer than queries.
    CHECK(sums_of("score + " + n) == "element ");
    // Warps that sum diagonals have no time for others.
    CHECK(sums_of("score + " + m + " + t[q_idx - kv_idx]") == "element distance ");
}

TEST_CASE("a dense bias's gradient is dS, whatever is summed over whole rows beside it") {
    const auto are_of_scores = [](const std::string& score) {
        return passes::are_biases_of_scores(
            test::lowered("buffer m: bf16[H, Q_LEN, KV_LEN] grad\nbuffer t: f32[H] grad\n"
                          "score_mod = " +
                          score));
    };
    const std::string capped = "3 * tanh((score + m[h, q_idx, kv_idx]) / 3)";
    CHECK(are_of_scores(capped));
    CHECK(are_of_scores(capped + " + t[h]"));
    CHECK(!are_of_scores(capped + " * t[h]"));
    CHECK(are_of_scores("score + m[h, q_idx, kv_idx] + t[h] * kv_idx"));
}

TEST_CASE("who shares an element of a dense bias, where its tiles are stored first") {
    const auto sharing_of = [](const std::string& dims, const std::string& index,
                               const std::string& more = "") {
        return passes::sharing_of_biases(test::lowered(
            "buffer m: f32[" + dims + "] grad\nscore_mod = score + m[" + index + "]" + more));
    };
    const auto sharing = sharing_of("H, Q_LEN, KV_LEN", "h, q_idx, kv_idx");
    REQUIRE(sharing.has_value());
    CHECK(*sharing == passes::BiasSharing{true, false, false});
    CHECK(sharing_of("B, H_KV, Q_LEN, KV_LEN", "b, h_kv, q_idx, kv_idx") ==
          passes::BiasSharing{false, false, true});
    CHECK(sharing_of("1, Q_LEN, KV_LEN", "0, q_idx, kv_idx") ==
          passes::BiasSharing{true, true, true});
    // Elements that no block writes.
    CHECK(!sharing_of("2, Q_LEN, KV_LEN", "0, q_idx, kv_idx"));
    CHECK(!sharing_of("H, Q_LEN, KV_LEN", "h_kv, q_idx, kv_idx"));
    CHECK(!sharing_of("Q_LEN, KV_LEN", "q_idx, kv_idx", "\nmask_mod = q_idx >= kv_idx"));
    // What another read adds must not be overwritten.
    CHECK(!sharing_of("H, Q_LEN, KV_LEN", "h, q_idx, kv_idx", " + m[0, 0, 0]"));
}
