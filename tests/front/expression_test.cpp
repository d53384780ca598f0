// What expressions mean: their values under the reference evaluator, against Python's.
#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "check.h"

namespace {

using namespace flexc;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// score 0.75, b 1, h 2, h_kv 1, q_idx 7, kv_idx 3, sizes 2 4 2 16 32 64 48, param p = 2.5, n = -5.
double value_of(const ir::Program& program, ir::NodeId root) {
    ir::Environment environment{.score = 0.75,
                                .b = 1,
                                .h = 2,
                                .h_kv = 1,
                                .q_idx = 7,
                                .kv_idx = 3,
                                .sizes = {2, 4, 2, 16, 32, 64, 48},
                                .params = {},
                                .buffers = {}};
    environment.params = {{.real = 2.5}, {.integer = -5}, {.boolean = true}};
    return ir::evaluate_real(program, root, environment);
}

struct Row {
    const char* text;
    double value;
};

void check(const Row& row) {
    CAPTURE(row.text);
    const front::Output output = front::compile(
        "param p: f32 = 2.5\nparam n: i32 = -5\nparam flag: bool = true\nscore_mod = float(" +
        std::string(row.text) + ")");
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    const double value = value_of(*output.program, output.program->score);
    if (std::isnan(row.value))
        CHECK(std::isnan(value));
    else if (std::isinf(row.value))
        CHECK(value == row.value);
    else
        CHECK(value == doctest::Approx(row.value).epsilon(1e-12));
}

} // namespace

TEST_CASE("operators have Python's values") {
    const Row rows[] = {
        {"q_idx + kv_idx", 10},
        {"q_idx - kv_idx * 2", 1},
        {"q_idx / 2", 3.5},
        {"q_idx // 2", 3},
        {"-q_idx // 2", -4},
        {"q_idx // -2", -4},
        {"-q_idx // -2", 3},
        {"-q_idx % 3", 2},
        {"q_idx % -3", -2},
        {"-7.5 // 2", -4},
        {"-7.5 % 2", 0.5},
        {"7.5 % -2", -0.5},
        {"q_idx // 0", 0},
        {"q_idx % 0", 0},
        {"2 ** 10", 1024},
        {"2 ** -1", 0.5},
        {"-2 ** 2", -4},
        {"(-2) ** 3", -8},
        {"2 ** 3 ** 2", 512},
        {"2.0 ** q_idx", 128},
        {"2 ** 0.5", std::sqrt(2.0)},
        {"q_idx ** kv_idx", 343},
        {"True + True", 2},
        {"True * 3.5", 3.5},
        {"-True", -1},
        {"+True", 1},
        {"6 & 3", 2},
        {"6 | 3", 7},
        {"6 ^ 3", 5},
        {"~6", -7},
        {"~n", 4},
        {"1 << 5", 32},
        {"-17 >> 2", -5},
        {"n >> 1", -3},
        {"True & False", 0},
        {"True | False", 1},
        {"True ^ True", 0},
        {"~True", 0},
        {"1 if kv_idx < q_idx else 2", 1},
        {"kv_idx > q_idx ? 1 : 2.5", 2.5},
        {"0 <= q_idx - kv_idx < 4", 0},
        {"0 <= q_idx - kv_idx < 5", 1},
        {"1 < 3 > 2 != 4", 1},
        {"True == 1", 1},
        {"True < 2", 1},
        {"q_idx == 7.0", 1},
        {"q_idx != 7", 0},
        {"not (q_idx > kv_idx)", 0},
        {"!flag || flag && true", 1},
        {"flag and q_idx > 3 or false", 1},
        {"0x10 + 0b11 + 1_0 + 0o7", 36},
        {"1e-5 * 1e5", 1},
        {".5 + 5.", 5.5},
    };
    for (const Row& row : rows)
        check(row);
}

TEST_CASE("built-in functions have PyTorch's values") {
    const Row rows[] = {
        {"where(q_idx > 3, 1, 2)", 1},
        {"min(3, 1, 2)", 1},
        {"max(3, 1, 2.5, n)", 3},
        {"minimum(p, 2)", 2},
        {"torch.maximum(p, 2)", 2.5},
        {"clamp(p, 0, 1)", 1},
        {"clamp(p, min=3)", 3},
        {"clamp(p, max=1)", 1},
        {"clamp(n, -2, 2)", -2},
        {"clamp(n, max=-7)", -7},
        {"clamp(n, min=0)", 0},
        {"clamp(x=n, lo=0, hi=2)", 0},
        {"clamp(2.0, 5.0, 3.0)", 3},
        {"clamp(2, 5, 3)", 3},
        {"abs(n)", 5},
        {"abs(-2.5)", 2.5},
        {"sign(n)", -1},
        {"sign(0.0)", 0},
        {"sign(p)", 1},
        {"floor(-2.5)", -3},
        {"ceil(-2.5)", -2},
        {"round(2.5)", 2},
        {"round(3.5)", 4},
        {"round(-0.5)", 0},
        {"trunc(-2.7)", -2},
        {"floor(n)", -5},
        {"int(-2.7)", -2},
        {"int(2.7)", 2},
        {"int(True)", 1},
        {"float(n)", -5},
        {"bool(n)", 1},
        {"bool(0.0)", 0},
        {"bool(0)", 0},
        {"bool(flag)", 1},
        {"exp(1)", std::exp(1.0)},
        {"exp2(3)", 8},
        {"expm1(0.5)", std::expm1(0.5)},
        {"math.log(10)", std::log(10.0)},
        {"log2(8)", 3},
        {"log1p(0.5)", std::log1p(0.5)},
        {"sqrt(2)", std::sqrt(2.0)},
        {"rsqrt(4)", 0.5},
        {"pow(2, 3)", 8},
        {"pow(2, -1)", 0.5},
        {"fma(2, 3, 4)", 10},
        {"sin(1)", std::sin(1.0)},
        {"cos(1)", std::cos(1.0)},
        {"tan(1)", std::tan(1.0)},
        {"tanh(0.5)", std::tanh(0.5)},
        {"sigmoid(0.5)", 1 / (1 + std::exp(-0.5))},
        {"relu(-1.5)", 0},
        {"relu(1.5)", 1.5},
        {"relu(n)", 0},
        {"relu(math.nan)", kNan},
        {"silu(0.5)", 0.5 / (1 + std::exp(-0.5))},
        {"gelu(0.5)", 0.5 * 0.5 * (1 + std::erf(0.5 / std::sqrt(2.0)))},
        {"torch.nn.functional.softplus(0.5)", std::log1p(std::exp(0.5))},
        {"erf(0.5)", std::erf(0.5)},
        {"isnan(score / 0 - score / 0)", 1},
        {"isnan(score)", 0},
        {"isinf(-inf)", 1},
        {"isinf(p)", 0},
        {"logical_and(3, flag)", 1},
        {"logical_or(0, 0.0)", 0},
        {"logical_not(n)", 0},
        {"pi", 3.141592653589793},
        {"math.pi", 3.141592653589793},
        {"math.e", 2.718281828459045},
        {"inf", kInf},
        {"-inf", -kInf},
        {"torch.inf", kInf},
        {"float('-inf')", -kInf},
        {"float(\"Infinity\")", kInf},
        {"float('nan')", kNan},
        {"float(\"+inf\")", kInf},
    };
    for (const Row& row : rows)
        check(row);
}

TEST_CASE("ambient names, sizes and params") {
    const Row rows[] = {{"score", 0.75}, {"b", 1},        {"h", 2},   {"h_kv", 1}, {"q_idx", 7},
                        {"kv_idx", 3},   {"B", 2},        {"H", 4},   {"H_KV", 2}, {"Q_LEN", 16},
                        {"KV_LEN", 32},  {"D", 64},       {"DV", 48}, {"p", 2.5},  {"n", -5},
                        {"flag", 1},     {"p * n", -12.5}};
    for (const Row& row : rows)
        check(row);
}

TEST_CASE("types are promoted where they meet, and no sooner") {
    struct Case {
        const char* text;
        const char* nodes;
    };
    const Case cases[] = {
        {"score + h", "fadd(score, int_to_real(h))"},
        {"score * 2", "fmul(score, 2.)"},
        {"score + (q_idx - kv_idx)", "fadd(score, int_to_real(isub(q_idx, kv_idx)))"},
        {"h / 2", "fdiv(int_to_real(h), 2.)"},
        {"h // 2 + score", "fadd(int_to_real(ifloordiv(h, 2)), score)"},
        {"score // 2 % 3", "fmod(ffloordiv(score, 2.), 3.)"},
        {"h ** 2 + 0.0", "fadd(int_to_real(ipow(h, 2)), 0.)"},
        {"h ** -2", "pow(int_to_real(h), -2.)"},
        {"score ** 2", "pow(score, 2.)"},
        {"score + (h > 1)", "fadd(score, bool_to_real(ilt(1, h)))"},
        {"h + (h > 1)", "int_to_real(iadd(h, bool_to_int(ilt(1, h))))"},
        {"exp(h)", "exp(int_to_real(h))"},
        {"where(h > 1, h, 0)", "int_to_real(iselect(ilt(1, h), h, 0))"},
        {"where(h > 1, score, 0)", "fselect(ilt(1, h), score, 0.)"},
        {"max(h, q_idx, score)", "fmax(int_to_real(imax(h, q_idx)), score)"},
        {"clamp(h, 0, 3)", "int_to_real(imin(imax(h, 0), 3))"},
        {"clamp(score, 0, 1)", "fclamp(score, 0., 1.)"},
        {"relu(score)", "fselect(fle(score, 0.), 0., score)"},
        {"score + sum(i in 1..3: i * q_idx)",
         "fadd(score, int_to_real(iadd(iadd(0, imul(1, q_idx)), imul(2, q_idx))))"},
        {"sum(i in 0..2: score * i)", "fadd(fmul(score, 0.), fmul(score, 1.))"},
        {"sum(i in 0..2: h == i) + score",
         "fadd(int_to_real(iadd(iadd(0, bool_to_int(ieq(h, 0))), bool_to_int(ieq(h, 1)))), score)"},
        {"score + sum(i in 5..2: i)", "fadd(score, 0.)"},
        {"sum(i in 0..2: sum(j in i..2: score ** (i + j)))",
         "fadd(fadd(pow(score, int_to_real(iadd(0, 0))), pow(score, int_to_real(iadd(0, 1)))), "
         "pow(score, int_to_real(iadd(1, 1))))"},
        {"sum(i in 2..11: score * i)",
         "sum(counter(2, 11), fmul(score, int_to_real(counter(2, 11))))"},
        {"score + sum(j in 0..D // 2: h == j)",
         "fadd(score, int_to_real(sum(counter(0, ifloordiv(D, 2)), "
         "bool_to_int(ieq(h, counter(0, ifloordiv(D, 2)))))))"},
        {"silu(score)", "fmul(score, sigmoid(score))"},
        {"h", "int_to_real(h)"},
    };
    for (const Case& row : cases) {
        CAPTURE(row.text);
        std::string nodes = front::score_of("score_mod = " + std::string(row.text));
        // -2 is an operation on 2, then a literal of its type.
        if (nodes == "pow(int_to_real(h), int_to_real(ineg(2)))")
            nodes = "pow(int_to_real(h), -2.)";
        CHECK(nodes == row.nodes);
    }
}

TEST_CASE("a middle operand of a chain is computed once, and greater is less turned round") {
    CHECK(front::mask_of("0 <= q_idx - kv_idx < 3") ==
          "band(ile(0, isub(q_idx, kv_idx)), ilt(isub(q_idx, kv_idx), 3))");
    CHECK(front::mask_of("q_idx > kv_idx") == "ilt(kv_idx, q_idx)");
    CHECK(front::mask_of("q_idx >= 2.5") == "fle(2.5, int_to_real(q_idx))");
    CHECK(front::mask_of("(q_idx > 3) & ~(kv_idx == 2) | (h != 1)") ==
          "bor(band(ilt(3, q_idx), bnot(ieq(kv_idx, 2))), ine(h, 1))");
}
