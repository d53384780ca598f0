// Any text gets a program or an error: never a crash, a hang, or a program that is not well typed.
// FLEXC_TEST_SEED repeats a run.
#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <random>
#include <string>

#include "check.h"
#include "dsl/lexer.h"
#include "dsl/parser.h"
#include "fresh_seed.h"
#include "front/library.h"
#include "ir/verify.h"
#include "random_program.h"

#include "../dsl/same_tree.h"

namespace {

using namespace flexc;

class Random {
  public:
    std::size_t below(std::size_t limit) { return engine_() % limit; }

  private:
    std::mt19937 engine_{test::fresh_seed()};
};

// What must hold for every text.
void check(const std::string& text) {
    CAPTURE(text);
    const dsl::Source source("random", text);
    REQUIRE(!dsl::print_tokens(source).empty());
    const dsl::Parsed parsed = dsl::parse(source);
    if (!dsl::has_errors(parsed.diagnostics)) {
        const std::string canonical = print_ast(parsed.ast);
        const dsl::Parsed again = dsl::parse(dsl::Source("canonical", canonical));
        // Parentheses make the canonical text longer and deeper; then it may be refused.
        if (again.diagnostics.empty())
            REQUIRE(same_tree(parsed.ast, again.ast));
        else
            REQUIRE((again.diagnostics[0].message.find("limit") != std::string::npos ||
                     again.diagnostics[0].message.find("levels") != std::string::npos));
    }
    const front::Output output = front::compile(text);
    REQUIRE(output.program.has_value() == !dsl::has_errors(output.diagnostics));
    REQUIRE(output.rendered.empty() == output.diagnostics.empty());
    if (!output.program) return;
    const ir::Program& program = *output.program;
    REQUIRE(program.graph.size() <= 4100);
    REQUIRE(program.graph[program.score].type == ir::Type::real);
    REQUIRE(program.graph[program.mask].type == ir::Type::boolean);
    REQUIRE(ir::verify(program) == "");
}

constexpr auto kWords = std::to_array<const char*>({"score",     "b",
                                                    "h",         "h_kv",
                                                    "q_idx",     "kv_idx",
                                                    "B",         "H",
                                                    "Q_LEN",     "t",
                                                    "u",         "s",
                                                    "p",         "n",
                                                    "W",         "f",
                                                    "g",         "x",
                                                    "y",         "0",
                                                    "1",         "2",
                                                    "3.5",       "1e-5",
                                                    "0x1F",      "9223372036854775807",
                                                    "true",      "False",
                                                    "inf",       "pi",
                                                    "+",         "-",
                                                    "*",         "/",
                                                    "//",        "%",
                                                    "**",        "&",
                                                    "|",         "^",
                                                    "~",         "<<",
                                                    ">>",        "<",
                                                    "<=",        ">",
                                                    ">=",        "==",
                                                    "!=",        "&&",
                                                    "||",        "!",
                                                    "and",       "or",
                                                    "not",       "if",
                                                    "else",      "?",
                                                    ":",         ",",
                                                    "(",         ")",
                                                    "[",         "]",
                                                    "{",         "}",
                                                    "=",         "+=",
                                                    "**=",       ";",
                                                    "\n",        "\n  ",
                                                    "buffer",    "param",
                                                    "const",     "fn",
                                                    "def",       "return",
                                                    "and_masks", "\n    ",
                                                    "score_mod", "mask_mod",
                                                    "grad",      "f32",
                                                    "i32",       "bool",
                                                    ".",         "torch.",
                                                    "math.",     "where",
                                                    "max",       "clamp",
                                                    "abs",       "int",
                                                    "float",     "exp",
                                                    "min=",      "causal",
                                                    "alibi",     "softcap",
                                                    "lambda",    "is",
                                                    "in",        ":=",
                                                    "->",        "@",
                                                    "'s'",       "\"inf\"",
                                                    "# c\n",     "...",
                                                    "\\",        "\t",
                                                    "$",         "\xC3\xA9"});

constexpr auto kSeeds = std::to_array<const char*>(
    {"buffer t: f32[H] grad\nbuffer u: i32[Q_LEN, 4]\nparam p: f32 = 1.5\nconst W = 3\nfn f(x, y = "
     "2) = x * y\n"
     "score_mod { x = t[h] * f(score); x += u[q_idx][1]; where(x > p, x, -inf) }\n"
     "mask_mod = 0 <= q_idx - kv_idx < W or causal()\n",
     "def mod(score, b, h, q, kv):\n    # pasted\n    bias = (q - kv) * 0.5\n    return score + "
     "bias if h else score\n",
     "score * 2 if (q_idx % 2 == 0) & ~(kv_idx > 3) else clamp(score, min=-1.0, "
     "max=float(\"inf\"))",
     "def near(n=3):\n  def mask(b, h, q, kv):\n    return q - kv <= n\n  mask.__name__ = 'm'\n"
     "  return and_masks(mask, causal)\nw = near(4)\nmask_mod = or_masks(w, near())\n"
     "score_mod {\n  def g(x):\n    return x.abs()\n  g(score)\n}",
     "mask_mod = near(3) and not (kv_idx & 1 == 0)\nfn near(n) { d = abs(q_idx - kv_idx); d <= n "
     "}"});

} // namespace

TEST_CASE("random bytes") {
    Random random;
    for (int i = 0; i < test::trials(3000); ++i) {
        std::string text;
        const std::size_t length = random.below(60);
        for (std::size_t j = 0; j < length; ++j)
            text += static_cast<char>(random.below(random.below(4) == 0 ? 256 : 128));
        check(text);
    }
}

TEST_CASE("random words") {
    Random random;
    for (int i = 0; i < test::trials(4000); ++i) {
        std::string text = random.below(2) == 0 ? "score_mod = " : "";
        const std::size_t length = 1 + random.below(random.below(10) == 0 ? 200 : 12);
        for (std::size_t j = 0; j < length; ++j) {
            text += kWords[random.below(kWords.size())];
            if (random.below(3) != 0) text += ' ';
        }
        check(text);
    }
}

TEST_CASE("programs with random changes") {
    Random random;
    for (int i = 0; i < test::trials(4000); ++i) {
        const std::size_t library = front::library().size();
        const std::size_t pick = random.below(kSeeds.size() + library);
        std::string text = pick < kSeeds.size()
                               ? std::string(kSeeds[pick])
                               : std::string(front::library()[pick - kSeeds.size()].text);
        for (std::size_t changes = 1 + random.below(4); changes-- > 0;) {
            const std::size_t at = random.below(text.size() + 1);
            const std::size_t length = std::min(random.below(6), text.size() - at);
            switch (random.below(4)) {
            case 0: text.erase(at, length); break;
            case 1: text.insert(at, kWords[random.below(kWords.size())]); break;
            case 2:
                text.insert(at, text.substr(random.below(text.size() + 1), random.below(30)));
                break;
            default: text.replace(at, length, kWords[random.below(kWords.size())]); break;
            }
        }
        check(text);
    }
}

TEST_CASE("random expressions that are mostly right") {
    Random random;
    const auto grow = [&](auto&& self, int depth) -> std::string {
        static constexpr const char* kLeaves[] = {"score", "h",     "q_idx",       "kv_idx", "2",
                                                  "0.5",   "t[h]",  "u[q_idx, 1]", "p",      "W",
                                                  "true",  "Q_LEN", "-inf"};
        if (depth == 0 || random.below(6) == 0) return kLeaves[random.below(std::size(kLeaves))];
        const std::string a = self(self, depth - 1), c = self(self, depth - 1),
                          d = self(self, depth - 1);
        switch (random.below(9)) {
        case 0: return a + " + " + c;
        case 1: return "(" + a + ") * (" + c + ")";
        case 2: return "where(" + a + " < " + c + ", " + c + ", " + d + ")";
        case 3: return a + " - " + c + " % (" + d + ")";
        case 4: return "max(" + a + ", " + c + ", " + d + ")";
        case 5: return "(" + a + " if " + c + " >= " + a + " else " + d + ")";
        case 6: return "-" + a + " // " + c;
        case 7: return "f(" + a + ", " + c + ")";
        default: return "tanh(" + a + ") ** 2";
        }
    };
    int programs = 0;
    for (int i = 0; i < test::trials(500); ++i) {
        const std::string text =
            "buffer t: f32[H] grad\nbuffer u: i32[Q_LEN, 4]\nparam p: f32 = 1.5\nconst W = 3\n"
            "fn f(x, y) = x * y + score\nscore_mod = 0.0 + " +
            grow(grow, 4);
        check(text);
        programs += front::compile(text).program.has_value() ? 1 : 0;
    }
    CHECK(programs > test::trials(500) / 2);
}
