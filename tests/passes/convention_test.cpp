// Derivatives where functions have kinks, ends or holes: the table of docs/language.md.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <optional>

#include "ir/interp.h"
#include "passes/describe.h"
#include "program_of.h"

using namespace flexc;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

// d score_mod / d score, and with respect to the element of t at kv_idx 0 when the program reads
// it.
struct Slopes {
    double score = 0;
    std::optional<double> read;
};

Slopes slopes(const std::string& expression, double score, double element = 0,
              double element_at_1 = 0) {
    const passes::Mod mod = test::lowered("buffer t: f32[KV_LEN] grad\nscore_mod = " + expression);
    const ir::BufferData data{{2}, {element, element_at_1}, {}, {}};
    ir::Environment environment;
    environment.score = score;
    environment.sizes = {1, 1, 1, 1, 2, 64, 64};
    environment.buffers = {&data};
    Slopes result;
    result.score = ir::evaluate_real(mod.program, mod.d_score, environment);
    for (const passes::ReadGradient& gradient : mod.gradients)
        if (passes::formula(mod.program, gradient.read) == "t[kv_idx]")
            result.read = ir::evaluate_real(mod.program, gradient.partial, environment);
    return result;
}

} // namespace

TEST_CASE("kinks of one operand") {
    CHECK(slopes("abs(score)", 0).score == 0);
    CHECK(slopes("abs(score)", -2).score == -1);
    CHECK(slopes("relu(score)", 0).score == 0);
    CHECK(slopes("relu(score)", 3).score == 1);
    CHECK(slopes("relu(score)", -3).score == 0);
    for (const char* function : {"sign", "floor", "ceil", "round", "trunc", "int"}) {
        CAPTURE(function);
        for (double score : {0.0, 0.5, 1.0, -2.5})
            CHECK(slopes(std::string(function) + "(score) * 1.0", score).score == 0);
    }
    CHECK(slopes("(score > 0) * 1.0", 0).score == 0);
    CHECK(slopes("score // 2", 4).score == 0);
}

TEST_CASE("ties of min and max") {
    CHECK(slopes("min(score, t[kv_idx])", 2, 2).score == 0.5);
    CHECK(*slopes("min(score, t[kv_idx])", 2, 2).read == 0.5);
    CHECK(slopes("max(score, t[kv_idx])", 2, 2).score == 0.5);
    CHECK(*slopes("max(score, t[kv_idx])", 2, 2).read == 0.5);
    CHECK(slopes("max(score, score)", 2).score == 1);
    CHECK(slopes("min(score, t[kv_idx])", 1, 2).score == 1);
    CHECK(*slopes("min(score, t[kv_idx])", 1, 2).read == 0);
    CHECK(slopes("max(score, 0)", 0).score == 0.5);
    // As PyTorch: a NaN operand takes the whole gradient, and so does the other.
    CHECK(slopes("min(score, t[kv_idx])", kNan, 2).score == 1);
    CHECK(*slopes("min(score, t[kv_idx])", kNan, 2).read == 1);
}

TEST_CASE("clamp gives the gradient to x at its bounds, to a bound outside") {
    CHECK(slopes("clamp(score, 0, 1)", 0).score == 1);
    CHECK(slopes("clamp(score, 0, 1)", 1).score == 1);
    CHECK(slopes("clamp(score, 0, 1)", 1.5).score == 0);
    CHECK(slopes("clamp(score, 0, 1)", -0.5).score == 0);
    CHECK(*slopes("clamp(score, t[kv_idx], 9)", 1, 1).read == 0);
    CHECK(*slopes("clamp(score, t[kv_idx], 9)", 0, 1).read == 1);
    CHECK(*slopes("clamp(score, -9, t[kv_idx])", 2, 1).read == 1);
    CHECK(*slopes("clamp(score, 5, t[kv_idx])", 2, 1).read == 1); // bounds the wrong way round
    CHECK(slopes("clamp(score, 5, t[kv_idx])", 2, 1).score == 0);
}

TEST_CASE("bounds of clamp that are equal get what others get") {
    for (const char* text : {"clamp(score, t[kv_idx], 2)", "clamp(score, 2, t[kv_idx])"}) {
        CAPTURE(text);
        const bool is_low = std::string(text).find("t[kv_idx], 2") != std::string::npos;
        CHECK(*slopes(text, 1, 2).read == (is_low ? 1 : 0));
        CHECK(*slopes(text, 3, 2).read == (is_low ? 0 : 1));
        CHECK(*slopes(text, 2, 2).read == 0);
        CHECK(slopes(text, 1, 2).score == 0);
        CHECK(slopes(text, 3, 2).score == 0);
        CHECK(slopes(text, 2, 2).score == 1);
    }
    // Each score's bounds are one and a half times of it.
    for (const double score : {2.0, -2.0})
        CHECK(slopes("clamp(score, score * 1.5, score + score * 0.5) + score", score).score == 2.5);
    CHECK(slopes("clamp(score, score * 1.5, score + score * 0.5) + score", 0).score == 2);
    CHECK(slopes("clamp(score, t[kv_idx], 2)", kNan, 2).score == 0);
    CHECK(*slopes("clamp(score, t[kv_idx], 2)", kNan, 2).read == 0);
}

TEST_CASE("a zero that a rule chooses is multiplied by nothing") {
    for (const char* text :
         {"sqrt(relu(score))", "sqrt(where(score > 0, score, 0.0))", "sqrt(clamp(score, 0, 9))",
          "log(relu(score))", "1 / relu(score)", "relu(score) ** 0.3", "sqrt(relu(score) * 2.0)",
          "sqrt(relu(score) + relu(score * 3.0))", "sqrt(relu(relu(score) * score))",
          "sqrt(relu(score)) * t[kv_idx]", "rsqrt(max(score, 0.0) * where(score > 0, 1.0, 0.0))",
          "sqrt(0.0 if score < 0 else (score if score > 1 else 0.0))",
          "sqrt(sum(i in 0..20: relu(score * float(i))))"}) {
        CAPTURE(text);
        CHECK(slopes(text, -1, 2).score == 0);
    }
    CHECK(slopes("sqrt(relu(score))", 0).score == 0);
    CHECK(slopes("sqrt(relu(score))", 4).score == 0.25);
    CHECK(slopes("sqrt(clamp(score, 0, 9))", 16).score == 0);
    CHECK(slopes("sqrt(clamp(score, 0, 9))", 4).score == 0.25);
    CHECK(slopes("sqrt(clamp(score, 0, 9))", 0).score == kInf); // at a bound 1 to x
    CHECK(slopes("sqrt(relu(score) + relu(score * 3.0))", 4).score == doctest::Approx(0.5));
    CHECK(*slopes("score * sqrt(relu(t[kv_idx]))", 3, -1).read == 0);
    CHECK(*slopes("score * sqrt(relu(t[kv_idx]))", 3, 4).read == 0.75);
    CHECK(slopes("sqrt(abs(score))", 0).score == 0);
    CHECK(slopes("abs(score ** 0.3)", 0).score == 0);
    // A sum of nothing.
    CHECK(slopes("sqrt(sum(i in 1..B: sin(score * i)))", 1).score == 0);
    CHECK(slopes("abs(score) ** -1.5", 0).score == 0);
    CHECK(slopes("sqrt(sum(i in 0..20: relu(score * float(i - 10))))", 4).score ==
          doctest::Approx(45 / (2 * std::sqrt(180.0))));
    // What a program computes is no choice.
    CHECK(std::isnan(slopes("sqrt(score * score)", 0).score));
}

TEST_CASE("reciprocal squares have slopes wherever f32 can hold these") {
    const passes::Mod mod = test::lowered("score_mod = score ** -2.0");
    ir::Environment environment;
    environment.sizes = {1, 1, 1, 1, 2, 64, 64};
    for (const double score : {1e-10, 1e-12, 1e12, -1e18}) {
        environment.score = score;
        const auto values =
            ir::evaluate<double>(mod.program, std::span(&mod.d_score, 1), environment);
        CHECK(values[mod.d_score].real == doctest::Approx(-2 / (score * score * score)));
        for (const ir::NodeId id : ir::reachable(mod.program.graph, std::span(&mod.d_score, 1)))
            CHECK(std::fabs(values[id].real) < 3e38);
    }
}

TEST_CASE("only the branch that is taken counts") {
    CHECK(slopes("where(score > 0, log(score), score)", -1).score == 1);
    CHECK(slopes("where(score > 0, log(score), score)", 2).score == doctest::Approx(0.5));
    CHECK(slopes("where(score > 0, sqrt(score), 0)", 0).score == 0);
    CHECK(slopes("score if t[kv_idx] > 0 else t[kv_idx] / 0 * score", 1, 1).score == 1);
    CHECK(*slopes("score if t[kv_idx] > 0 else t[kv_idx] / 0 * score", 1, 1).read == 0);
    CHECK(slopes("where(t[kv_idx] == t[kv_idx], score, t[kv_idx])", 1, kNan).score == 0);
    CHECK(*slopes("where(t[kv_idx] == t[kv_idx], score, t[kv_idx])", 1, kNan).read == 1);
    CHECK(slopes("where(q_idx >= kv_idx, score, -inf)", 1).score == 1);
    // The inner derivative is infinite where the outer one is zero.
    CHECK(slopes("clamp(1 / score, -1, 1)", 0).score == 0);
    CHECK(slopes("max(sqrt(score), 1)", 0).score == 0);
    CHECK(slopes("min(1 / score, 2.0)", 0).score == 0);
}

TEST_CASE("powers") {
    CHECK(slopes("score ** 2", -3).score == -6);
    CHECK(slopes("score ** 0.0", 0).score == 0);
    CHECK(slopes("score ** t[kv_idx]", 0, 0).score == 0);
    CHECK(*slopes("score ** t[kv_idx]", 0, 0).read == 0);
    CHECK(*slopes("score ** t[kv_idx]", 0, 2).read == 0);
    CHECK(slopes("score ** t[kv_idx]", 0, 1).score == 1);
    CHECK(*slopes("score ** t[kv_idx]", 0, -1).read == -kInf);
    CHECK(slopes("score ** t[kv_idx]", 2, 3).score == doctest::Approx(12));
    CHECK(*slopes("score ** t[kv_idx]", 2, 3).read == doctest::Approx(8 * std::log(2.0)));
    CHECK(std::isnan(*slopes("score ** t[kv_idx]", -2, 3).read));
    CHECK(slopes("score ** t[kv_idx]", -2, 3).score == doctest::Approx(12));
    // A fixed exponent asks for no logarithm of a negative base.
    CHECK(slopes("score ** 5", -2).score == doctest::Approx(80));
    CHECK(slopes("2.0 ** score", 3).score == doctest::Approx(8 * std::log(2.0)));
}

TEST_CASE("modulo") {
    CHECK(slopes("score % 3", 7).score == 1);
    CHECK(*slopes("score % t[kv_idx]", 7, 3).read == -2);
    CHECK(*slopes("score % t[kv_idx]", -7, 3).read == 3);
}

TEST_CASE("every read of a buffer has its own partial; equal reads share one") {
    const passes::Mod mod =
        test::lowered("buffer t: f32[KV_LEN] grad\n"
                      "score_mod = score + t[q_idx] * t[kv_idx] + t[kv_idx + 0] + t[int(t[0])]");
    REQUIRE(mod.gradients.size() == 3);
    for (const passes::ReadGradient& gradient : mod.gradients) {
        const std::string read = passes::formula(mod.program, gradient.read);
        const std::string partial = passes::formula(mod.program, gradient.partial);
        CAPTURE(read);
        if (read == "t[q_idx]")
            CHECK(partial == "t[kv_idx]");
        else if (read == "t[kv_idx]")
            CHECK(partial == "t[q_idx] + 1");
        else
            CHECK((read == "t[int(t[0])]" && partial == "1"));
    }
}

TEST_CASE("a program that does not use score, or only in conditions") {
    const passes::Mod fixed = test::lowered("buffer t: f32[KV_LEN] grad\nscore_mod = t[kv_idx]");
    CHECK(passes::formula(fixed.program, fixed.d_score) == "0");
    const passes::Mod branch =
        test::lowered("buffer t: f32[KV_LEN] grad\nscore_mod = score if t[kv_idx] > 0 else 2.0");
    CHECK(branch.gradients.empty());
}
