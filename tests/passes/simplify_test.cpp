#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <limits>

#include "ir/print.h"
#include "ir/verify.h"
#include "passes/describe.h"
#include "passes/simplify.h"
#include "program_of.h"
#include "random_program.h"

using namespace flexc;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

constexpr const char* kDeclarations =
    "param cap: f32 = 2\nparam n: int = 3\nparam on: bool = true\n"
    "buffer t: f32[KV_LEN]\nbuffer keep: bool[KV_LEN]\n";

void simplify_program(ir::Program& program) {
    const std::array roots = {&program.score, &program.mask, &program.sink};
    passes::simplify(program, roots);
}

std::string simplified(const std::string& expression) {
    ir::Program program = test::program_of(kDeclarations + ("score_mod = " + expression));
    simplify_program(program);
    return passes::formula(program, program.score);
}

std::string simplified_mask(const std::string& expression) {
    ir::Program program = test::program_of(kDeclarations + ("mask_mod = " + expression));
    simplify_program(program);
    return passes::formula(program, program.mask);
}

// Values far outside f32 take other paths in double than folded constants do.
bool is_comparable(const ir::Program& program, const ir::Environment& environment) {
    const std::array roots = {program.score, program.mask, program.sink};
    const auto values = ir::evaluate<double>(program, roots, environment);
    for (ir::NodeId id : ir::reachable(program.graph, roots)) {
        const double magnitude = std::fabs(values[id].real);
        if (std::isfinite(magnitude) && magnitude != 0 && (magnitude > 1e30 || magnitude < 1e-30))
            return false;
    }
    return true;
}

bool close(double x, double y) {
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && std::isnan(y);
    if (std::isinf(x) || std::isinf(y)) return x == y;
    return std::fabs(x - y) <= 1e-4 * (1 + std::fabs(x));
}

} // namespace

TEST_CASE("simplifying keeps values, NaN and infinities included") {
    int compared = 0, not_finite = 0;
    for (const std::uint64_t seed : test::seeds(1500)) {
        CAPTURE(seed);
        const ir::Program before = test::random_program(seed, {.operators = 45});
        CAPTURE(ir::print(before));
        ir::Program after = before;
        simplify_program(after);
        REQUIRE(ir::verify(after) == "");
        CAPTURE(ir::print(after));
        test::Instance instance(before, seed);
        ir::Environment& environment = instance.environment();
        for (double score : {0.5, 0.0, -1.0, -1.75, 100.0, kInf, -kInf, kNan}) {
            instance.move();
            environment.score = score;
            if (!is_comparable(before, environment)) continue;
            const double expected = ir::evaluate_real(before, before.score, environment);
            const double actual = ir::evaluate_real(after, after.score, environment);
            CAPTURE(score);
            CAPTURE(expected);
            CAPTURE(actual);
            REQUIRE(close(actual, expected));
            REQUIRE(ir::evaluate_boolean(before, before.mask, environment) ==
                    ir::evaluate_boolean(after, after.mask, environment));
            ++compared;
            not_finite += !std::isfinite(expected);
        }
    }
    CHECK(compared > 5 * test::trials(1500));
    CHECK(not_finite > test::trials(1500) / 3);
}

TEST_CASE("simplifying twice changes nothing more") {
    for (const std::uint64_t seed : test::seeds(300)) {
        CAPTURE(seed);
        ir::Program program = test::random_program(seed, {.operators = 60, .tame = false});
        simplify_program(program);
        const std::string once = ir::print(program);
        simplify_program(program);
        CHECK(ir::print(program) == once);
    }
}

TEST_CASE("real identities") {
    CHECK(simplified("score + 0") == "score");
    CHECK(simplified("score * 1.0") == "score");
    CHECK(simplified("score * -1.0") == "-score");
    CHECK(simplified("-(-score)") == "score");
    CHECK(simplified("score - (-t[kv_idx])") == "score + t[kv_idx]");
    CHECK(simplified("score / 8") == "score * 0.125");
    CHECK(simplified("score ** 1.0") == "score");
    CHECK(simplified("score ** 2") == "score * score");
    CHECK(simplified("score ** 0.5") == "sqrt(score)");
    CHECK(simplified("2.0 ** score") == "exp2(score)");
    CHECK(simplified("score + (2.0 * 3.0 - 6.0)") == "score");
    CHECK(simplified("score + exp(0.0)") == "score + 1");
    CHECK(simplified("score if true else t[kv_idx]") == "score");
    CHECK(simplified("where(on, score, score)") == "score");
    CHECK(simplified("where(not on, score, cap)") == "where(on, cap, score)");
    CHECK(simplified("where(on, where(on, score, 2.0), 3.0)") == "where(on, score, 3)");
    CHECK(simplified("abs(-score)") == "abs(score)");
    CHECK(simplified("floor(float(q_idx))") == "q_idx");
}

TEST_CASE("what NaN, infinities or rounding forbid is left alone") {
    CHECK(simplified("score * 0") == "score * 0");
    CHECK(simplified("score - score") == "score - score");
    CHECK(simplified("score / 3") == "score / 3");
    CHECK(simplified("score * 3 * 5") == "(score * 3) * 5");
}

TEST_CASE("integer identities") {
    CHECK(simplified("score + (q_idx * 0)") == "score");
    CHECK(simplified("score + (q_idx - q_idx)") == "score");
    CHECK(simplified("t[kv_idx + 3 - 3]") == "t[kv_idx]");
    CHECK(simplified("t[kv_idx + 5 - 3]") == "t[kv_idx + 2]");
    CHECK(simplified("t[kv_idx - 5 + 3]") == "t[kv_idx - 2]");
    CHECK(simplified("t[q_idx - (q_idx - kv_idx)]") == "t[kv_idx]");
    CHECK(simplified("t[kv_idx // 1]") == "t[kv_idx]");
    CHECK(simplified("t[kv_idx // 0 + kv_idx % 1]") == "t[0]");
    CHECK(simplified("t[min(min(kv_idx, 7), 5)]") == "t[min(kv_idx, 5)]");
    CHECK(simplified("t[-(q_idx - kv_idx)]") == "t[kv_idx - q_idx]");
    CHECK(simplified("t[7 // 2 + 2 ** 3 - -7 % 4]") == "t[10]");
    CHECK(simplified("t[(1 << 3) >> 1]") == "t[4]");
    CHECK(simplified("t[~~kv_idx]") == "t[kv_idx]");
    CHECK(simplified("t[n ^ n | kv_idx]") == "t[kv_idx]");
}

TEST_CASE("logic") {
    CHECK(simplified_mask("on and true") == "on");
    CHECK(simplified_mask("on and false") == "false");
    CHECK(simplified_mask("on or true") == "true");
    CHECK(simplified_mask("on and on") == "on");
    CHECK(simplified_mask("on or not on") == "true");
    CHECK(simplified_mask("not not on") == "on");
    CHECK(simplified_mask("not (q_idx < kv_idx)") == "kv_idx <= q_idx");
    CHECK(simplified_mask("not (q_idx == kv_idx)") == "q_idx != kv_idx");
    CHECK(simplified_mask("q_idx <= q_idx") == "true");
    CHECK(simplified_mask("q_idx != q_idx") == "false");
    CHECK(simplified_mask("3 < 2") == "false");
    CHECK(simplified_mask("not (t[kv_idx] < cap)") == "not (t[kv_idx] < cap)"); // NaN
    CHECK(simplified_mask("t[kv_idx] == t[kv_idx]") == "t[kv_idx] == t[kv_idx]");
    CHECK(simplified_mask("true if on else false") == "on");
    CHECK(simplified_mask("keep[kv_idx] if on else false") == "on and keep[kv_idx]");
    CHECK(simplified_mask("int(on) == 1") == "on");
}

TEST_CASE("an operand of `and` stays behind the one that guards it") {
    CHECK(simplified_mask("kv_idx < n and keep[kv_idx]") == "(kv_idx < n) and keep[kv_idx]");
    CHECK(simplified_mask("keep[kv_idx] and kv_idx < n") == "keep[kv_idx] and (kv_idx < n)");
}

TEST_CASE("folding is in f32") {
    CHECK(simplified("score * (1.0 / 3.0)") ==
          "score * " + ir::print_real(static_cast<double>(static_cast<float>(1.0 / 3.0))));
    CHECK(simplified("score + 1e30 * 1e30") == "score + inf");
}
