// Stated limits: each is a clear error, and none takes long to reach.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <pthread.h>

#include "check.h"

using namespace flexc;
using front::first_message;

namespace {

std::string repeated(const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i)
        out += text;
    return out;
}

const std::string kTooLarge = "the program is larger than 4,096 IR nodes after inlining";

} // namespace

TEST_CASE("64 KiB of text") {
    CHECK(front::compile("score" + std::string(65536 - 5, ' ')).program.has_value());
    CHECK(first_message("score" + std::string(65536 - 4, ' ')) ==
          "the text is 65537 bytes long; the limit is 65,536");
    CHECK(first_message(std::string(1 << 20, '(')).starts_with("the text is 1048576 bytes"));
    CHECK(first_message(std::string("score\0", 6)) == "the text has a NUL byte");
    CHECK(first_message("score # \xFE") == "the text is not UTF-8");
}

TEST_CASE("256 levels of nesting") {
    CHECK(front::compile(repeated("(", 256) + "score" + repeated(")", 256)).program.has_value());
    CHECK(first_message(repeated("(", 257) + "score" + repeated(")", 257)) ==
          "expressions are nested more than 256 levels deep");
    CHECK(front::compile(repeated("exp(", 256) + "score" + repeated(")", 256)).program.has_value());
}

TEST_CASE("256 levels of calls") {
    const auto chain = [](int length) {
        std::string text = "fn f0(x) = x + 1\n";
        for (int i = 1; i < length; ++i)
            text += "fn f" + std::to_string(i) + "(x) = f" + std::to_string(i - 1) + "(x)\n";
        return text + "score_mod = f" + std::to_string(length - 1) + "(score)";
    };
    CHECK(front::compile(chain(256)).program.has_value());
    CHECK(first_message(chain(257)) == "calls are nested more than 256 levels deep");
    CHECK(first_message(chain(2000)) == "calls are nested more than 256 levels deep");
    // Deep expressions in each call.
    std::string text = "fn f0(x) = x\n";
    for (int i = 1; i < 60; ++i)
        text += "fn f" + std::to_string(i) + "(x) = " + repeated("-(", 100) + "f" +
                std::to_string(i - 1) + "(x)" + repeated(")", 100) + "\n";
    CHECK(first_message(text + "score_mod = f59(score)") ==
          "calls and expressions are nested too deeply");
}

// docs/embedding.md states what is needed. Sanitizers and unoptimised code need more.
#if defined(NDEBUG) && !defined(__SANITIZE_ADDRESS__)
TEST_CASE("the deepest programs need a stack of 512 KiB, usual ones of 128 KiB") {
    const auto chain = [](const std::string& first, int length) {
        std::string text = "fn f0(x) = x\n";
        for (int i = 1; i < length; ++i)
            text += "fn f" + std::to_string(i) + "(x) = " + first + "f" + std::to_string(i - 1) +
                    "(x)" + repeated(")", static_cast<int>(std::ranges::count(first, '('))) + "\n";
        return text + "score_mod = f" + std::to_string(length - 1) + "(score)";
    };
    const auto nested = [](const std::string& open, int count) {
        return repeated(open, count) + "score" +
               repeated(")", count * static_cast<int>(std::ranges::count(open, '(')));
    };
    const auto at = [&](int levels) {
        std::string masks = "def m0(b, h, q, kv): return q >= kv\n";
        for (int i = 1; i < levels; ++i)
            masks +=
                "m" + std::to_string(i) + " = and_masks(m" + std::to_string(i - 1) + ", causal)\n";
        return std::vector<std::string>{nested("(", levels),
                                        nested("exp(", levels),
                                        nested("exp(score + ", levels),
                                        nested("(score + (h * ", levels / 2),
                                        nested("(1 < ", levels) + " > 0",
                                        nested("score if b > 0 else ", levels - 1),
                                        nested("score ** ", levels - 1),
                                        chain("", levels),
                                        chain("1 + (2 * exp(", levels),
                                        chain("exp(exp(exp(", levels),
                                        masks + "mask_mod = m" + std::to_string(levels - 1)};
    };
    const auto compile_all = [](void* programs) -> void* {
        for (const std::string& text : *static_cast<const std::vector<std::string>*>(programs))
            (void)front::compile(text);
        return nullptr;
    };
    const auto run = [&](std::vector<std::string> programs, std::size_t stack_bytes) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        REQUIRE(pthread_attr_setstacksize(&attributes, stack_bytes) == 0);
        pthread_t thread;
        REQUIRE(pthread_create(&thread, &attributes, compile_all, &programs) == 0);
        pthread_join(thread, nullptr);
        pthread_attr_destroy(&attributes);
    };
    run(at(255), std::size_t{512} << 10);
    run(at(12), std::size_t{128} << 10);
}
#endif

TEST_CASE("4,096 nodes after inlining") {
    CHECK(front::compile("score" + repeated(" + h", 4000)).program.has_value());
    CHECK(first_message("score" + repeated(" + h", 4100)) == kTooLarge);
    // Integer literals that become real ones count once.
    std::string literals = "score";
    for (int i = 0; i < 2000; ++i)
        literals += " + " + std::to_string(i);
    CHECK(front::compile(literals).program.has_value());
    // Doubling functions: two to the 60th nodes, and two to the 60th visits of a few shared nodes.
    std::string grows = "fn f0(x) = x * h + x\n", shares = "fn f0(x) = x\n";
    for (int i = 1; i <= 60; ++i) {
        const std::string name = "f" + std::to_string(i), before = "f" + std::to_string(i - 1);
        grows += "fn " + name + "(x) = " + before + "(" + before + "(x) + 1)\n";
        shares += "fn " + name + "(x) = max(" + before + "(x), " + before + "(x))\n";
    }
    CHECK(first_message(grows + "score_mod = f60(score)") == kTooLarge);
    CHECK(first_message(shares + "score_mod = f60(score)") ==
          "the program is too large after inlining");
}

TEST_CASE("thousands of names, all unknown or in the worst order") {
    std::string consts, uses = "score_mod = score";
    for (int i = 0; i < 2500; ++i) {
        consts += "const a" + std::to_string(i) + "=1\n";
        uses += " + x" + std::to_string(i);
    }
    CHECK(front::compile(consts + uses).diagnostics.size() == 20);
    std::string chain;
    for (int i = 0; i < 2500; ++i)
        chain += "const a" + std::to_string(i) + " = a" + std::to_string(i + 1) + "\n";
    CHECK(first_message(chain + "const a2500 = 1") ==
          "calls and expressions are nested too deeply");
}

TEST_CASE("32 buffers and 8 dims") {
    const auto buffers = [](int count) {
        std::string text;
        for (int i = 0; i < count; ++i)
            text += "buffer t" + std::to_string(i) + ": f32[H]\n";
        return text;
    };
    CHECK(front::compile(buffers(32)).program.has_value());
    CHECK(first_message(buffers(33)) == "the program has 33 buffers; the limit is 32");
    CHECK(front::compile("buffer t: f32[1, 1, 1, 1, 1, 1, 1, 1]").program.has_value());
    CHECK(first_message("buffer t: f32[1, 1, 1, 1, 1, 1, 1, 1, 1]") ==
          "'t' has 9 dimensions; the limit is 8");
}

TEST_CASE("256 params") {
    const auto params = [](int count) {
        std::string text;
        for (int i = 0; i < count; ++i)
            text += "param p" + std::to_string(i) + ": f32 = 0.5\n";
        return text;
    };
    CHECK(front::compile(params(256)).program.has_value());
    const front::Output output = front::compile(params(257));
    CHECK(front::first_message(output) == "the program has 257 params; the limit is 256");
    CHECK(output.rendered.find("test:257:1: error") != std::string::npos);
}

TEST_CASE("2^48 elements of a buffer") {
    CHECK(front::compile("buffer t: f32[65536, 65536, 65536]").program.has_value());
    CHECK(first_message("buffer t: f32[65536, 65536, 65537]") == "'t' has more than 2^48 elements");
    CHECK(first_message("const N = 3037000500\nbuffer t: u8[N, H, N, N, N]") ==
          "'t' has more than 2^48 elements");
}

TEST_CASE("errors are not repeated for each call, and there are not too many") {
    const front::Output twice =
        front::compile("fn f(x) = x + nothing\nscore_mod = f(score) + f(score) + f(h)");
    CHECK(twice.diagnostics.size() == 1);
    CHECK(front::compile("score" + repeated(" + nothing", 1)).diagnostics.size() == 1);
    std::string many = "score_mod = score";
    for (int i = 0; i < 500; ++i)
        many += " + nothing" + std::to_string(i);
    CHECK(front::compile(many).diagnostics.size() == 20);
}

TEST_CASE("warnings leave room for errors, and there are not too many of them") {
    std::string warned = "score_mod = score";
    for (int i = 0; i < 100; ++i)
        warned += " + h // 0";
    CHECK(front::compile(warned).diagnostics.size() == 20);
    const front::Output refused = front::compile(warned + " + nothing");
    CHECK(!refused.program);
    CHECK(refused.diagnostics.size() == 21);
    CHECK(dsl::has_errors(refused.diagnostics));
    CHECK(refused.rendered.find("nothing") != std::string::npos);
}
