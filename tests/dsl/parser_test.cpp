#include <doctest/doctest.h>

#include <string>

#include "dsl/parser.h"
#include "same_tree.h"

namespace {

using namespace flexc::dsl;

std::string printed(const std::string& text) {
    const Source source("test", text);
    const Parsed parsed = parse(source);
    return parsed.diagnostics.empty() ? print_ast(parsed.ast) : render(source, parsed.diagnostics);
}

std::string first_error(const std::string& text) {
    const Parsed parsed = parse(Source("test", text));
    return parsed.diagnostics.empty() ? "" : parsed.diagnostics[0].message;
}

struct Row {
    const char* text;
    const char* tree;
};

} // namespace

TEST_CASE("precedence and associativity are Python's") {
    const Row rows[] = {
        {"a + b * c", "a + (b * c)"},
        {"a - b - c", "(a - b) - c"},
        {"a / b // c % d", "((a / b) // c) % d"},
        {"-a ** 2", "-(a ** 2)"},
        {"2 ** -1", "2 ** (-1)"},
        {"a ** b ** c", "a ** (b ** c)"},
        {"-a * b", "(-a) * b"},
        {"~a & b", "(~a) & b"},
        {"a | b ^ c & d << 1 + 2", "a | (b ^ (c & (d << (1 + 2))))"},
        {"a & b == c", "(a & b) == c"},
        {"not a == b", "not (a == b)"},
        {"not a and not b or c", "((not a) and (not b)) or c"},
        {"!a == b", "(not a) == b"},
        {"a && b || c", "(a and b) or c"},
        {"a < b <= c != d", "a < b <= c != d"},
        {"a < b and b < c", "(a < b) and (b < c)"},
        {"a if c else b", "a if c else b"},
        {"a if c else b if d else e", "a if c else (b if d else e)"},
        {"c ? a : d ? b : e", "a if c else (b if d else e)"},
        {"c ? d ? a : b : e", "(a if d else b) if c else e"},
        {"a or b if c and d else e", "(a or b) if (c and d) else e"},
        {"f(a, b)[c]", "f(a, b)[c]"},
        {"t[a][b, c]", "t[a][b, c]"},
        {"clamp(x, min=0, max=1)", "clamp(x, min=0, max=1)"},
        {"torch.where(a, b, c)", "torch.where(a, b, c)"},
        {"sum(i in 0..n - 1: a[i] if c else b)", "sum(i in 0..n - 1: a[i] if c else b)"},
        {"sum(i, a) + torch.sum(i)", "sum(i, a) + torch.sum(i)"},
        {"math.log(x) + torch.nn.functional.silu(x)", "torch.log(x) + torch.silu(x)"},
        {"float(\"inf\") + float('-inf')", "torch.inf + (-torch.inf)"},
        {"torch.inf - math.pi", "torch.inf - torch.pi"},
        {"True and false", "true and false"},
        {"0x1F + 0b11 + 1_000 + 0o17", "((31 + 3) + 1000) + 15"},
        {"1e-5 + .5 + 5. + 1e22", "((1e-05 + 0.5) + 5.0) + 1e+22"},
        {"(((a)))", "a"},
        {"f(a, b,)", "f(a, b)"},
        {"+-~a", "+(-(~a))"},
        {"a +\n b *\n c", "a + (b * c)"},
        {"(a\n+ b)", "a + b"},
        {"a if c else\n b", "a if c else b"},
        {"not\na", "not a"},
        {"9223372036854775807", "9223372036854775807"},
    };
    for (const Row& row : rows) {
        CAPTURE(row.text);
        CHECK(printed(row.text) == std::string(row.tree) + "\n");
    }
}

TEST_CASE("items and bodies") {
    const Row rows[] = {
        {"buffer s: f32[H] grad", "buffer s: f32[H] grad\n"},
        {"buffer s : bf16 [ 2, N , Q_LEN ]", "buffer s: bf16[2, N, Q_LEN]\n"},
        {"buffer s: f32[]", "buffer s: f32[]\n"},
        {"buffer s: torch.float32[H]", "buffer s: float32[H]\n"},
        {"param c: f32 = 20.0; param n: int", "param c: f32 = 20.0\nparam n: int\n"},
        {"const W = 1024", "const W = 1024\n"},
        {"W = 1024", "W = 1024\n"},
        {"W: int = 1024", "W = 1024\n"},
        {"fn near(n) = q_idx - n", "fn near(n) = q_idx - n\n"},
        {"fn near(n: int, m = 2) -> bool { n }", "fn near(n, m = 2) = n\n"},
        {"score_mod { a = 1; a += 2\n\n a **= 3 ; return a }",
         "score_mod {\n  a = 1\n  a += 2\n  a **= 3\n  a\n}\n"},
        {"score_mod\n{ score }", "score_mod = score\n"},
        {"score_mod =\n  score", "score_mod = score\n"},
        {"score_mod { score } mask_mod = true", "score_mod = score\nmask_mod = true\n"},
        {"\"\"\"a program\"\"\"\nscore", "score\n"},
        {"score # comment\n# another\n\n", "score\n"},
        {"", ""},
        {"  \n;\n# nothing\n", ""},
        // Words of declarations are names elsewhere.
        {"score_mod { param = 1; buffer = 2; grad = 3; fn = 4; param + buffer + grad + fn }",
         "score_mod {\n  param = 1\n  buffer = 2\n  grad = 3\n  fn = 4\n"
         "  ((param + buffer) + grad) + fn\n}\n"},
    };
    for (const Row& row : rows) {
        CAPTURE(row.text);
        CHECK(printed(row.text) == row.tree);
    }
}

TEST_CASE("pasted Python functions") {
    const Row rows[] = {
        {"def f(score, b, h, q, kv):\n    return score\n",
         "def f(score, b, h, q, kv):\n  return score\n"},
        {"def f(score: Tensor, b: int, h: dict[str, int], q, kv) -> torch.Tensor:\n\treturn score",
         "def f(score, b, h, q, kv):\n  return score\n"},
        {"def f(b, h, q, kv): return q >= kv", "def f(b, h, q, kv):\n  return q >= kv\n"},
        {"def f(b, h, q, kv): x = q; return x >= kv",
         "def f(b, h, q, kv):\n  x = q\n  return x >= kv\n"},
        {"  def f(b, h, q, kv):\n    '''doc\n  string'''\n    # c\n\n    x: int = q\n    return "
         "(x\n >= kv)\n",
         "def f(b, h, q, kv):\n  x = q\n  return x >= kv\n"},
        {"def f(x):\n  return x\ndef g(x):\n\n  return x\n\nscore_mod = f(score)",
         "def f(x):\n  return x\ndef g(x):\n  return x\nscore_mod = f(score)\n"},
        {"def f(\n    score,\n    b, h, q, kv,\n):\n    return score\n",
         "def f(score, b, h, q, kv):\n  return score\n"},
        {"def f(x):\n  x\n", "def f(x):\n  return x\n"},
        {"def f(x):\n  def g(y): return y\n  g.__name__ = f'{x}'\n  z = x.abs()\n  return g\n",
         "def f(x):\n  def g(y):\n    return y\n  z = torch.abs(x)\n  return g\n"},
        {"score_mod {\n  def g(y):\n     'doc'\n     z = y\n     return z\n\n  g(score)\n}",
         "score_mod {\n  def g(y):\n    z = y\n    return z\n  g(score)\n}\n"},
    };
    for (const Row& row : rows) {
        CAPTURE(row.text);
        CHECK(printed(row.text) == row.tree);
    }
}

TEST_CASE("the canonical text parses to the same tree") {
    const char* programs[] = {
        "buffer s: f32[H, 2 * 3] grad\nparam c: f32 = -1.5e-7\nconst W = 3\nX = 4\n"
        "fn f(a, b = 2) { a -= b; a * c }\nscore_mod { score <<= 1; f(score, b=3) if not (h < 2 <= "
        "5) "
        "else -score ** -2 }\nmask_mod = s[h][q_idx, 1] and torch.max(a, b) == ~3 or !x\n",
        "def f(score, b, h, q, kv):\n  x = 1\n  return score + x\n",
        "2 * sum(i in 0..4: a[i] + sum(j in i..N: b[j])) ** 2",
        "a - (b - c) - d ** (e ** f) / (g / h)",
        "(a < b) < c",
        "-(-a) + (not b) + (a if b else c)[1](2)",
        "1e300 + 5e-324 + 0.1 + 123456789.0 + 3.0",
        "(score_mod) | f(h)",
        "(mask_mod[0])",
    };
    for (const char* text : programs) {
        CAPTURE(text);
        const Source source("test", text);
        const Parsed first = parse(source);
        if (has_errors(first.diagnostics)) continue;
        const std::string canonical = print_ast(first.ast);
        const Parsed second = parse(Source("test", canonical));
        CHECK_MESSAGE(second.diagnostics.empty(), canonical);
        CHECK(same_tree(first.ast, second.ast));
        CHECK(print_ast(second.ast) == canonical);
    }
}

TEST_CASE("nesting is limited, length is not") {
    const auto nested = [](int levels, const std::string& open, const std::string& close) {
        std::string text;
        for (int i = 0; i < levels; ++i)
            text += open;
        text += "1";
        for (int i = 0; i < levels; ++i)
            text += close;
        return text;
    };
    const std::string too_deep = "expressions are nested more than 256 levels deep";
    CHECK(first_error(nested(256, "(", ")")).empty());
    CHECK(first_error(nested(257, "(", ")")) == too_deep);
    for (const auto& [open, close] : {std::pair{"-", ""},
                                      {"not ", ""},
                                      {"f(", ")"},
                                      {"t[", "]"},
                                      {"1 ** ", ""},
                                      {"1 if a else ", ""},
                                      {"a ? 1 : ", ""},
                                      {"~(", ")"}}) {
        CAPTURE(open);
        CHECK(first_error(nested(100, open, close)).empty());
        CHECK(first_error(nested(5000, open, close)) == too_deep);
    }
    CHECK(first_error(nested(20000, "(", "")) == "'(' was never closed");
    std::string chain = "t";
    for (int i = 0; i < 10000; ++i)
        chain += "[1]";
    CHECK(first_error(chain) == too_deep);
    std::string sum = "1", comparison = "1";
    for (int i = 0; i < 15000; ++i) {
        sum += " + 1";
        comparison += " < 1";
    }
    CHECK(first_error(sum).empty());
    CHECK(first_error(comparison).empty());
    CHECK(printed(sum).size() > 60000);
}

TEST_CASE("an error does not hide the next one") {
    const Parsed parsed = parse(
        Source("test", "const 3\nfn f( = 2\nscore_mod {\n  x = \n  y = )\n  x\n}\nmask_mod = (\n"));
    CHECK(parsed.diagnostics.size() == 4);
    std::string many;
    for (int i = 0; i < 1000; ++i)
        many += "const 3\n";
    CHECK(parse(Source("test", many)).diagnostics.size() <= 21);
}
