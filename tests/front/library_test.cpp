#include <doctest/doctest.h>

#include <set>
#include <string>

#include "check.h"
#include "dsl/parser.h"
#include "front/builtins.h"
#include "front/library.h"

using namespace flexc;

TEST_CASE("every library mod is a program, described, with a function of its name") {
    REQUIRE(front::library().size() >= 81);
    std::set<std::string> names;
    for (const front::LibraryMod& mod : front::library()) {
        CAPTURE(std::string(mod.name));
        CHECK(names.insert(std::string(mod.name)).second);
        CHECK((mod.group == "mask" || mod.group == "score"));
        CHECK(mod.text.starts_with("## " + std::string(mod.name) + ": "));
        CHECK(mod.page.size() > 3);
        CHECK(mod.summary.ends_with('.'));
        CHECK(mod.summary.size() > 20);
        CHECK(front::find_builtin(mod.name) == nullptr);
        CHECK(front::find_library_mod(mod.name) == &mod);
        const front::Output output = front::compile(std::string(mod.text));
        CHECK_MESSAGE(output.rendered.empty(), output.rendered);
        REQUIRE(output.program.has_value());
        const bool scores = output.program->graph[output.program->score].op != ir::Op::score ||
                            output.program->sink != ir::kNoNode;
        CHECK(scores == (mod.group == "score"));
        for (const ir::Param& param : output.program->params)
            CHECK(param.has_default);
    }
    CHECK(front::find_library_mod("nothing") == nullptr);
}

TEST_CASE("library functions need nothing of their file but their parameters") {
    for (const front::LibraryMod& mod : front::library()) {
        CAPTURE(std::string(mod.name));
        // The same program without its function, so that the call finds the library's.
        const dsl::Parsed parsed = dsl::parse(dsl::Source("test", std::string(mod.text)));
        std::string text;
        for (const dsl::Item& item : parsed.ast.items)
            if (item.kind != dsl::ItemKind::function) {
                dsl::Ast one = parsed.ast;
                one.items = {item};
                text += print_ast(one);
            }
        const front::Output whole = front::compile(std::string(mod.text)),
                            called = front::compile(text);
        REQUIRE_MESSAGE(called.program.has_value(), called.rendered);
        CHECK(front::spell(*whole.program, whole.program->score) ==
              front::spell(*called.program, called.program->score));
        CHECK(front::spell(*whole.program, whole.program->mask) ==
              front::spell(*called.program, called.program->mask));
        REQUIRE((whole.program->sink == ir::kNoNode) == (called.program->sink == ir::kNoNode));
        if (whole.program->sink != ir::kNoNode)
            CHECK(front::spell(*whole.program, whole.program->sink) ==
                  front::spell(*called.program, called.program->sink));
    }
}

TEST_CASE("library functions compose") {
    CHECK(front::mask_of("mask_mod = causal() and sliding_window(1024)")
              .starts_with("band(ile(kv_idx, q_idx), "));
    CHECK(front::score_of(
              "buffer slopes: f32[H] grad\nscore_mod = softcap(alibi(score, slopes), 30.0)") ==
          "fmul(30., tanh(fdiv(fadd(score, fmul(slopes[h], int_to_real(isub(kv_idx, q_idx)))), "
          "30.)))");
}
