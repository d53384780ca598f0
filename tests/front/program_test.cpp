// Whole programs: mods, bodies, functions, declarations.
#include <doctest/doctest.h>

#include "check.h"

using namespace flexc;
using front::compile;
using front::first_message;
using front::mask_of;
using front::score_of;

TEST_CASE("the page's own example") {
    const front::Output output = compile(R"(
# ALiBi whose slopes are learned, inside documents
buffer slopes: f32[H] grad
buffer doc: i32[KV_LEN]
param  cap: f32 = 20.0
const  W = 1024
fn near(n) = q_idx - kv_idx <= n

score_mod {
  bias = slopes[h] * (kv_idx - q_idx)
  cap * tanh((score + bias) / cap)
}
mask_mod = q_idx >= kv_idx and near(W) and doc[q_idx] == doc[kv_idx]
)");
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    CHECK(output.rendered.empty());
    const ir::Program& program = *output.program;
    CHECK(front::spell(program, program.score) == "fmul(cap, tanh(fdiv(fadd(score, fmul(slopes[h], "
                                                  "int_to_real(isub(kv_idx, q_idx)))), cap)))");
    CHECK(front::spell(program, program.mask) == "band(band(ile(kv_idx, q_idx), ile(isub(q_idx, "
                                                 "kv_idx), 1024)), ieq(doc[q_idx], doc[kv_idx]))");
    REQUIRE(program.buffers.size() == 2);
    CHECK(program.buffers[0].grad);
    CHECK(program.buffers[0].dtype == DType::f32);
    CHECK(program.buffers[0].dims[0].size == ir::kH);
    CHECK(program.buffers[1].dims[0].size == ir::kKvLen);
    REQUIRE(program.params.size() == 1);
    CHECK(program.params[0].default_value == 20);
}

TEST_CASE("both mods are optional") {
    for (const char* text : {"", "# nothing\n", "const W = 3", "fn f(x) = x"}) {
        CAPTURE(text);
        CHECK(score_of(text) == "score");
        CHECK(mask_of(text) == "true");
    }
    CHECK(score_of("mask_mod = q_idx > 2") == "score");
    CHECK(mask_of("score_mod = score * 2") == "true");
}

TEST_CASE("a bare expression is the mod that its type says") {
    CHECK(score_of("score * 2") == "fmul(score, 2.)");
    CHECK(mask_of("score * 2") == "true");
    CHECK(mask_of("q_idx >= kv_idx") == "ile(kv_idx, q_idx)");
    CHECK(score_of("q_idx >= kv_idx") == "score");
    CHECK(score_of("buffer t: f32[Q_LEN]; score + t[q_idx]") == "fadd(score, t[q_idx])");
    CHECK(mask_of("causal() and sliding_window(1024)").find("1024") != std::string::npos);
    CHECK(score_of("h") == "int_to_real(h)");
}

TEST_CASE("names may be assigned again, the ambient ones too") {
    CHECK(score_of("score_mod { score = where(h > 1, score * 0.5, score); score += h; score }") ==
          "fadd(fselect(ilt(1, h), fmul(score, 0.5), score), int_to_real(h))");
    CHECK(
        score_of("score_mod { x = h; x = x + 1; x *= 2; x -= q_idx; x //= 3; x %= 5; x **= 2\n"
                 "x <<= 1; x >>= 2; x &= 7; x |= 8; x ^= 1; x }") ==
        "int_to_real(ixor(ior(iand(ishr(ishl(ipow(imod(ifloordiv(isub(imul(iadd(h, 1), 2), q_idx), "
        "3), 5), 2), 1), 2), 7), 8), 1))");
    CHECK(score_of("score_mod { x = h; x /= 2; x }") == "fdiv(int_to_real(h), 2.)");
    CHECK(mask_of("mask_mod { q_idx = q_idx + 1; q_idx >= kv_idx }") ==
          "ile(kv_idx, iadd(q_idx, 1))");
    // One mod does not see what the other assigned.
    CHECK(mask_of("score_mod { h = h + 1; score * h }\nmask_mod = h > 2") == "ilt(2, h)");
}

TEST_CASE("functions are copied into their calls") {
    CHECK(score_of("fn twice(x) = x * 2\nscore_mod = twice(twice(score))") ==
          "fmul(fmul(score, 2.), 2.)");
    CHECK(score_of("fn f(x) { y = x + 1; y *= y; return y }\nscore_mod = f(h)") ==
          "int_to_real(imul(iadd(h, 1), iadd(h, 1)))");
    CHECK(score_of("score_mod = later(score)\nfn later(x) = x + W\nconst W = 2") ==
          "fadd(score, 2.)");
    // Ambient names inside a function are the ambient ones, not what the caller assigned.
    CHECK(score_of("fn f() = score * 2\nscore_mod { score = score + 1; f() }") ==
          "fmul(score, 2.)");
    // A parameter hides what is outside; assigning it stays inside.
    CHECK(score_of("const W = 3\nfn f(W, score) { score = score + W; score }\n"
                   "score_mod { x = 1.0; f(x, h) + x }") == "fadd(fadd(int_to_real(h), 1.), 1.)");
    CHECK(score_of("fn f(x, y = 2, z = H) = x * y + z\nscore_mod = f(h) + f(h, z=1)") ==
          "int_to_real(iadd(iadd(imul(h, 2), H), iadd(imul(h, 2), 1)))");
    CHECK(score_of("buffer t: f32[H, Q_LEN]\nfn f(t, i) = t[h, i]\nscore_mod = f(t, q_idx)") ==
          "t[h, q_idx]");
    // The program's names hide the built-in and the library's; torch. still means the built-in.
    CHECK(score_of("fn abs(x) = x + 1\nscore_mod = abs(score) + torch.abs(score)") ==
          "fadd(fadd(score, 1.), fabs(score))");
    CHECK(score_of("fn softcap(x, cap) = x\nscore_mod = softcap(score, 2)") == "score");
}

TEST_CASE("buffers are read in full, at once or in steps, and may have other names") {
    const std::string t = "buffer t: f32[B, H, 4]\nbuffer s: f32[]\n";
    CHECK(score_of(t + "score_mod = t[b, h, 1] + t[b][h][1] + t[b][h, 1]") ==
          "fadd(fadd(t[b, h, 1], t[b, h, 1]), t[b, h, 1])");
    CHECK(score_of(t + "score_mod { row = t[b]; row = row[h]; row[2] * s }") ==
          "fmul(t[b, h, 2], s[])");
    CHECK(score_of(t + "fn at(row, i) = row[i]\nscore_mod = at(t[b, h], 3) + s") ==
          "fadd(t[b, h, 3], s[])");
    CHECK(score_of(t + "score_mod { s += 1; s }").find("'s' is a buffer") != std::string::npos);
    CHECK(score_of(t + "score_mod { x = s; x += 1; x }") == "fadd(s[], 1.)");
    CHECK(score_of(t + "score_mod { x = t; x += 1; x }").find("'t' is a buffer with 3") !=
          std::string::npos);
    CHECK(score_of("buffer m: bool[2]\nscore_mod = m[h > 1] * score") ==
          "fmul(bool_to_real(m[bool_to_int(ilt(1, h))]), score)");
    CHECK(score_of("buffer t: f64[Q_LEN]\nscore_mod = t[q_idx]") == "t[q_idx]");
}

TEST_CASE("dims are numbers, consts, sizes and new names") {
    const front::Output output =
        compile("buffer a: i8[N, H, 2 * W + 1, W]\nbuffer c: u8[N, M]\nconst W = 3\n"
                "score_mod = score + N * M + a[0, h, 1, 2]");
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    const ir::Program& program = *output.program;
    REQUIRE(program.sizes.size() == ir::kStandardSizes + 2);
    CHECK(program.sizes[ir::kStandardSizes] == "N");
    CHECK(program.sizes[ir::kStandardSizes + 1] == "M");
    CHECK(program.buffers[0].dims[0].size == ir::kStandardSizes);
    CHECK(program.buffers[0].dims[2].constant == 7);
    CHECK(program.buffers[0].dims[3].constant == 3);
    CHECK(program.buffers[1].dims[0].size == ir::kStandardSizes);
}

TEST_CASE("consts are computed, in any order") {
    CHECK(score_of("const A = C * 2\nconst C = 3\nscore_mod = score * A") == "fmul(score, 6.)");
    CHECK(score_of("const R = 1 / 4\nW = R + 1\nscore_mod = W") == "1.25");
    CHECK(mask_of("const ON = 3 > 2\nmask_mod = ON") == "true");
    CHECK(score_of("fn half(x) = x / 2\nconst A = half(3)\nscore_mod = A") == "1.5");
    CHECK(score_of("const A = max(2, 3) if 1 < 2 else 7\nscore_mod = score + A") ==
          "fadd(score, 3.)");
}

TEST_CASE("params have types and defaults") {
    const front::Output output =
        compile("param a: f32 = 1 / 4\nparam c: i64 = -3\nparam d: bool = true\n"
                "param e: int\nparam f: f32 = 3\nparam g: f32 = -inf");
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    const std::vector<ir::Param>& params = output.program->params;
    REQUIRE(params.size() == 6); // unread ones stay
    CHECK(params[0].default_value == 0.25);
    CHECK(params[1].type == ir::Type::integer);
    CHECK(params[1].default_value == -3);
    CHECK(params[2].type == ir::Type::boolean);
    CHECK(params[2].default_value == 1);
    CHECK_FALSE(params[3].has_default);
    CHECK(params[4].default_value == 3);
    CHECK(params[5].default_value < -1e300);
}

TEST_CASE("pasted Python functions are mods by their number of parameters") {
    CHECK(
        score_of(
            "def alibi(score, b, h, q, kv):\n    bias = (kv - q) * h\n    return score + bias\n") ==
        "fadd(score, int_to_real(imul(isub(kv_idx, q_idx), h)))");
    CHECK(mask_of("def m(batch, head, i, j):\n    return (i >= j) & (head == 2)") ==
          "band(ile(kv_idx, q_idx), ieq(h, 2))");
    // One that is called is a function, whatever its parameters.
    CHECK(mask_of("def c(b, h, q, kv):\n  return q >= kv\ndef m(b, h, q, kv):\n  return c(b, h, q, "
                  "kv) | (kv < 4)") == "bor(ile(kv_idx, q_idx), ilt(kv_idx, 4))");
    CHECK(score_of(
              "W = 8\ndef f(score, b, h, q, kv, cap=2.0):\n  return torch.tanh(score / cap) * W") ==
          "fmul(tanh(fdiv(score, 2.)), 8.)");
    CHECK(score_of("def near(n):\n  return q_idx - kv_idx <= n\ndef f(s, b, h, q, kv):\n"
                   "  return torch.where(near(3), s, float('-inf'))") ==
          "fselect(ile(isub(q_idx, kv_idx), 3), score, fneg(inf))");
    // Named after its kind, it is a mod of this kind or an error.
    CHECK(score_of("def score_mod(s, b, h, q, kv):\n  return s * 2") == "fmul(score, 2.)");
    CHECK(mask_of("def mask_mod(b, h, q, kv):\n  return q >= kv\n"
                  "def both(b, h, q, kv):\n  return mask_mod(b, h, q, kv) & (h > 1)") ==
          "band(ile(kv_idx, q_idx), ilt(1, h))");
    CHECK(first_message("def score_mod(b, h, q, kv):\n  return q >= kv") ==
          "'score_mod' is a name of the language and cannot be declared");
    // An explicit mod leaves a def of its kind as a function.
    CHECK(mask_of("def m(b, h, q, kv):\n  return q >= kv\nmask_mod = true") == "true");
    CHECK(first_message(
              "def f(b, h, q, kv):\n  return q >= kv\ndef g(b, h, q, kv):\n  return q > kv") ==
          "the program has a second mask_mod");
}

TEST_CASE("masks are put together as values") {
    const std::string parts = "def a(b, h, q, kv):\n  return q >= kv\n"
                              "def c(b, h, q, kv):\n  return kv < 3\nfn d() = h == 1\n";
    const std::string both = "band(ile(kv_idx, q_idx), ilt(kv_idx, 3))";
    CHECK(mask_of(parts + "mask_mod = and_masks(a, c)") == both);
    CHECK(mask_of(parts + "and_masks(a, c)") == both);
    CHECK(mask_of(parts + "both = and_masks(a, c)\nmask_mod = both") == both);
    CHECK(mask_of(parts + "mask_mod { both = and_masks(a, c); return both }") == both);
    CHECK(mask_of(parts + "both = and_masks(a, c)\nmask_mod = both(0, 0, kv_idx, q_idx)") ==
          "band(ile(q_idx, kv_idx), ilt(q_idx, 3))");
    CHECK(mask_of(parts + "mask_mod = or_masks(and_masks(a, c), d, torch.or_masks(c))") ==
          "bor(bor(" + both + ", ieq(h, 1)), ilt(kv_idx, 3))");
    // The library's functions, as functions and as bools.
    CHECK(mask_of("mask_mod = and_masks(causal, causal)") ==
          "band(ile(kv_idx, q_idx), ile(kv_idx, q_idx))");
    CHECK(mask_of(parts + "mask_mod = and_masks(c, causal())") ==
          "band(ilt(kv_idx, 3), ile(kv_idx, q_idx))");
    CHECK(mask_of("mask_mod = causal") == "ile(kv_idx, q_idx)");
    // A function without parameters sees the element itself, whatever the call says.
    CHECK(first_message(parts + "both = and_masks(a, d)\nmask_mod = both(0, 0, kv_idx, q_idx)") ==
          "'d' has 0 parameters, and is no mask_mod");
    CHECK(front::compile_text({.source = dsl::Source("test", "score"),
                               .buffers = {},
                               .params = {},
                               .mask_mod = "and_masks(causal, causal)"})
              .program);
}

TEST_CASE("a function may make a function") {
    const std::string window = "def window(size: int = 4) -> Mask:\n"
                               "  \"\"\"A doc string.\"\"\"\n"
                               "  def mask(b, h, q, kv):\n    return q - kv <= size\n"
                               "  mask.__name__ = f\"window_{size}\"\n  return mask\n";
    CHECK(mask_of(window + "mask_mod = window(7)") == "ile(isub(q_idx, kv_idx), 7)");
    CHECK(mask_of(window + "mask_mod = window()") == "ile(isub(q_idx, kv_idx), 4)");
    CHECK(mask_of(window + "mask = window(size=9)\nmask.__name__ = 'x'\nmask_mod = mask") ==
          "ile(isub(q_idx, kv_idx), 9)");
    CHECK(mask_of(window + "mask_mod = window(1)(b, h, kv_idx, q_idx)").find("only a name") !=
          std::string::npos);
    CHECK(mask_of(window + "m = window(1)\nmask_mod = m(b, h, kv_idx, q_idx)") ==
          "ile(isub(kv_idx, q_idx), 1)");
    // What it captures: numbers, buffers, params, functions, and names that are assigned later.
    CHECK(score_of("buffer t: f32[H]\nparam p: f32 = 1\n"
                   "def make(table, scale):\n  def mod(score, b, h, q, kv):\n"
                   "    return score * scale + table[h] * late\n  late = 3\n  return mod\n"
                   "score_mod = make(t, p)") == "fadd(fmul(score, p), fmul(t[h], 3.))");
    CHECK(mask_of(window + "def moved(mask, by):\n  def inner(b, h, q, kv):\n"
                           "    return mask(b, h, q + by, kv)\n  return inner\n"
                           "mask_mod = moved(window(2), 5)") ==
          "ile(isub(iadd(q_idx, 5), kv_idx), 2)");
    // Each call makes its own.
    CHECK(mask_of(window + "mask_mod = or_masks(window(1), window(2))") ==
          "bor(ile(isub(q_idx, kv_idx), 1), ile(isub(q_idx, kv_idx), 2))");
    // A name inside hides one outside, as in Python.
    CHECK(mask_of("size = 1\n" + window +
                  "def make():\n  size = 3\n  return window(size)\n"
                  "mask_mod = make()") == "ile(isub(q_idx, kv_idx), 3)");
    // Functions beside it, and in a mod.
    CHECK(mask_of("def make(w):\n  def row(i):\n    return i // w\n  def mask(b, h, q, kv):\n"
                  "    return row(q) == row(kv)\n  return mask\nmask_mod = make(8)") ==
          "ieq(ifloordiv(q_idx, 8), ifloordiv(kv_idx, 8))");
    CHECK(score_of("score_mod {\n  x = 2\n  def twice(y):\n    return y * x\n  twice(score)\n}") ==
          "fmul(score, 2.)");
    CHECK(score_of("def f(score, b, h, q, kv):\n  def g(s): return s + h\n\n  return g(score)") ==
          "fadd(score, int_to_real(h))");
}

TEST_CASE("methods are PyTorch's functions") {
    CHECK(score_of("score.tanh()") == score_of("tanh(score)"));
    CHECK(score_of("(score + 1).clamp(min=0).pow(2)") ==
          score_of("pow(clamp(score + 1, min=0), 2)"));
    CHECK(score_of("fn tanh(x) = x\nscore_mod = score.tanh()") == "tanh(score)");
    CHECK(first_message("score.max(3)") == "methods are not supported");
    CHECK(first_message("score.where(h < 1, 0)") == "methods are not supported");
    CHECK(first_message("score.tangent()") == "unknown function 'tangent'");
    CHECK(first_message("fn half_of(x) = x / 2\nscore_mod = score.half_of()") ==
          "unknown function 'half_of'");
}

TEST_CASE("functions as values end: programs that double at each name are refused") {
    std::string text = "def m0(b, h, q, kv):\n  return q >= kv\n";
    for (int i = 1; i < 40; ++i)
        text += "m" + std::to_string(i) + " = and_masks(m" + std::to_string(i - 1) + ", m" +
                std::to_string(i - 1) + ")\n";
    CHECK(first_message(text + "mask_mod = m39") == "the program is too large after inlining");
    CHECK(first_message("a = and_masks(c, c)\nc = or_masks(a, a)\nmask_mod = a") ==
          "'a' is defined by itself");
}

TEST_CASE("what the options add") {
    front::Input input{
        .source = dsl::Source("test", "score_mod = score + bias[h, row, W] * cap + n + N"),
        .buffers = {{.name = "bias", .type = DType::bf16, .dims = {"H", "N", "3"}, .grad = true}},
        .params = {{.name = "cap", .value = 2.5}, {.name = "n", .value = 3, .type = DType::i64}},
        .mask_mod = "near(2) and q_idx >= kv_idx"};
    input.source = dsl::Source("test", "const W = 2\nfn near(n) = q_idx - kv_idx <= n\n"
                                       "score + bias[h, q_idx, W] * cap + n + N");
    const front::Output output = compile_text(input);
    REQUIRE_MESSAGE(output.program.has_value(), output.rendered);
    CHECK(front::spell(*output.program, output.program->score) ==
          "fadd(fadd(fadd(score, fmul(bias[h, q_idx, 2], cap)), int_to_real(n)), int_to_real(N))");
    CHECK(front::spell(*output.program, output.program->mask) ==
          "band(ile(isub(q_idx, kv_idx), 2), ile(kv_idx, q_idx))");
    CHECK(output.program->buffers[0].grad);
    CHECK(output.program->buffers[0].dims[2].constant == 3);
    CHECK(output.program->params[1].type == ir::Type::integer);
}

TEST_CASE("what is wrong in the options is said without a place in the text") {
    const auto rendered = [](front::Input input) {
        if (input.source.text().empty())
            input.source = dsl::Source("test", "buffer t: f32[H]\nscore");
        return compile_text(input).rendered;
    };
    CHECK(rendered({.source = {}, .buffers = {}, .params = {}, .mask_mod = "q_idx >= kv_id"}) ==
          "mask_mod:1:10: error: unknown name 'kv_id'\n    1 | q_idx >= kv_id\n      |          "
          "^~~~~\n"
          "      = hint: did you mean 'kv_idx'?\n");
    CHECK(rendered({.source = {}, .buffers = {}, .params = {}, .mask_mod = "const W = 3"})
              .starts_with("mask_mod: error: the mask_mod option is not an expression"));
    CHECK(rendered({.source = dsl::Source("test", "mask_mod = true"),
                    .buffers = {},
                    .params = {},
                    .mask_mod = "true"}) ==
          "test: warning: the mask_mod option is not used: the text has a mask_mod\n");
    CHECK(
        rendered(
            {.source = {}, .buffers = {{.name = "t", .dims = {"H"}}}, .params = {}, .mask_mod = ""})
            .starts_with("test: error: 't' is declared twice: in the text and in the options\n"));
    CHECK(rendered({.source = {}, .buffers = {{.name = "1t"}}, .params = {}, .mask_mod = ""})
              .starts_with("test: error: buffer '1t' of the options: this is not a name"));
    CHECK(
        rendered(
            {.source = {}, .buffers = {{.name = "x", .dims = {"0"}}}, .params = {}, .mask_mod = ""})
            .starts_with("test: error: buffer 'x' of the options: '0' is neither"));
    CHECK(rendered({.source = {},
                    .buffers = {{.name = "x", .type = DType::i8, .grad = true}},
                    .params = {},
                    .mask_mod = ""})
              .starts_with("test: error: buffer 'x' of the options: i8 has no gradient"));
    CHECK(rendered({.source = {},
                    .buffers = {},
                    .params = {{.name = "x", .type = DType::f16}},
                    .mask_mod = ""})
              .starts_with("test: error: param 'x' of the options: params are f32"));
}

TEST_CASE("nodes keep the place of the text that made them") {
    const std::string text = "score_mod = score + softcap(h * 2, 3.0)";
    const front::Output output = compile(text);
    REQUIRE(output.program.has_value());
    const dsl::Source source("test", text);
    const ir::Graph& graph = output.program->graph;
    const ir::Node& sum = graph[output.program->score];
    CHECK(source.slice(sum.span) == "score + softcap(h * 2, 3.0)");
    // Inside a library function: the call.
    CHECK(source.slice(graph[sum.operands[1]].span) == "softcap(h * 2, 3.0)");
}

TEST_CASE("sinks") {
    const auto sink_of = [](const std::string& text) {
        const front::Output output = compile(text);
        if (!output.program) return output.rendered;
        return output.program->sink == ir::kNoNode
                   ? std::string("none")
                   : front::spell(*output.program, output.program->sink);
    };
    CHECK(sink_of("buffer s: f32[H]\nsink = s[h]") == "s[h]");
    CHECK(sink_of("buffer s: f32[H]\nsink {\n  x = s[h]\n  x * q_idx\n}\nscore_mod = -score") ==
          "fmul(s[h], int_to_real(q_idx))");
    CHECK(sink_of("sink = 1") == "1.");
    CHECK(sink_of("score_mod = score") == "none");
    CHECK(sink_of("score + h\nsink = b") == "int_to_real(b)");
    CHECK(sink_of("buffer sink: f32[H]\nsink = sink[h]") == "sink[h]");
    // What other programs call their first tokens.
    CHECK(sink_of("sink = 4\nmask_mod = kv_idx < sink") == "none");
    CHECK(sink_of("const sink = 4\nmask_mod = kv_idx < sink") == "none");
    CHECK(sink_of("sink = 4\ndef near(b, h, q, kv):\n  return kv < sink") == "none");
    CHECK(sink_of("def near(b, h, q, kv, sink=3):\n  return kv < sink\nsink = 4") !=
          "none"); // a name of its own
    CHECK(sink_of("score_mod {\n  sink = score * 2\n  sink + 1\n}") == "none");

    const auto of_option = [](const std::string& text, const std::string& sink) {
        const front::Output output = front::compile_text(
            {.source = dsl::Source("test", text), .mask_mod = "", .sink = sink});
        return output.program && output.program->sink != ir::kNoNode
                   ? front::spell(*output.program, output.program->sink) + output.rendered
                   : output.rendered;
    };
    const std::string buffer = "buffer s: f32[H]\nfn half(x) = x * 0.5\n";
    CHECK(of_option(buffer + "score", "half(s[h])") == "fmul(s[h], 0.5)");
    CHECK(of_option(buffer + "score", "sink = s[h]") == "s[h]");
    CHECK(of_option(buffer + "score", "s[kv_idx]")
              .starts_with("sink:1:3: error: sink cannot use kv_idx"));
    CHECK(of_option(buffer + "score", "mask_mod = true")
              .starts_with("sink: error: the sink option is not an expression"));
    CHECK(of_option("sink = 2.5", "1.5") ==
          "2.5test: warning: the sink option is not used: the text has a sink\n");
}
