#include <doctest/doctest.h>

#include "dsl/diagnostic.h"

using namespace flexc::dsl;

TEST_CASE("positions count lines and code points") {
    const Source source("test", "aé\r\nb\n");
    CHECK(source.position(0).column == 1);
    CHECK(source.position(3).column == 3); // é has two bytes
    CHECK(source.position(5).line == 2);
    CHECK(source.position(5).column == 1);
    CHECK(source.position(1000).line == 3);
    CHECK(source.line(1) == "aé");
    CHECK(source.line(2) == "b");
    CHECK(source.line(3).empty());
    CHECK(source.line(99).empty());
    CHECK(source.slice({1, 3}) == "é");
    CHECK(source.slice({5, 1000}) == "b\n");
    CHECK(source.slice({1000, 2000}).empty());
}

TEST_CASE("a message has place, line, caret and hint") {
    const Source source("mod.flex", "a\nscore + slope\n");
    CHECK(render(source, Diagnostic{.span = {10, 15}, .message = "unknown", .hint = "slopes?"}) ==
          "mod.flex:2:9: error: unknown\n"
          "    2 | score + slope\n"
          "      |         ^~~~~\n"
          "      = hint: slopes?\n");
    CHECK(render(source, Diagnostic{.severity = Severity::warning, .message = "odd"}) ==
          "mod.flex: warning: odd\n");
}

TEST_CASE("carets stand under what they mean") {
    // Wide code points are one column, tabs four, control characters one.
    CHECK(render(Source("t", "\té\x1b x"), Diagnostic{.span = {5, 6}, .message = "m"}) ==
          "t:1:5: error: m\n"
          "    1 |     é? x\n"
          "      |        ^\n");
    // Several lines: the first one, to its end.
    CHECK(render(Source("t", "ab(\ncd)"), Diagnostic{.span = {1, 7}, .message = "m"}) ==
          "t:1:2: error: m\n"
          "    1 | ab(\n"
          "      |  ^~\n");
    // The end of the text.
    CHECK(render(Source("t", "ab"), Diagnostic{.span = {2, 2}, .message = "m"}) ==
          "t:1:3: error: m\n"
          "    1 | ab\n"
          "      |   ^\n");
}

TEST_CASE("long lines are cut around the caret") {
    const std::string text = std::string(1000, 'x') + "HERE" + std::string(1000, 'y');
    const std::string out =
        render(Source("t", text), Diagnostic{.span = {1000, 1004}, .message = "m"});
    CHECK(out.size() < 500);
    const std::size_t second = out.find('\n') + 1, third = out.find('\n', second) + 1;
    CHECK(out.find("HERE") - second == out.find('^') - third);
    CHECK(out.find("^~~~\n") != std::string::npos);
}

TEST_CASE("notes follow with their own places") {
    const Source source("t", "a\nb");
    CHECK(render(source, Diagnostic{.span = {2, 3}, .message = "m", .notes = {{{0, 1}, "n"}}}) ==
          "t:2:1: error: m\n    2 | b\n      | ^\nt:1:1: note: n\n    1 | a\n      | ^\n");
}
