#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "dsl/lexer.h"

namespace {

using namespace flexc::dsl;

// Kinds and texts, newlines as "|".
std::string lexed(const std::string& text) {
    const Source source("test", text);
    std::string out;
    for (const Token& token : lex(source).list) {
        if (token.kind == TokenKind::end) break;
        if (!out.empty()) out += ' ';
        out += token.kind == TokenKind::newline ? "|" : std::string(source.slice(token.span));
    }
    return out;
}

std::string first_error(const std::string& text) {
    const Tokens tokens = lex(Source("test", text));
    return tokens.diagnostics.empty() ? "" : tokens.diagnostics[0].message;
}

} // namespace

TEST_CASE("the longest operator wins") {
    CHECK(lexed("a**=b**c*d") == "a **= b ** c * d");
    CHECK(lexed("a//=b//c/d") == "a //= b // c / d");
    CHECK(lexed("a<<=1<<2<=3<4") == "a <<= 1 << 2 <= 3 < 4");
    CHECK(lexed("a!=!b") == "a != ! b");
    CHECK(lexed("a&&b&c||d|e") == "a && b & c || d | e");
    CHECK(lexed("f()->x:=y") == "f ( ) -> x := y");
    CHECK(lexed("0..64:1...2") == "0 .. 64 : 1 ... 2");
}

TEST_CASE("numbers") {
    for (const char* integer : {"0", "7", "1_000", "0x1F", "0b101", "0o17", "0XfF"}) {
        CAPTURE(integer);
        CHECK(lex(Source("test", integer)).list[0].kind == TokenKind::integer);
        CHECK(first_error(integer).empty());
    }
    for (const char* real : {"1.5", ".5", "5.", "1e-5", "1E+5", "2.5e3", "1_0.2_5"}) {
        CAPTURE(real);
        const Tokens tokens = lex(Source("test", real));
        CHECK(tokens.list[0].kind == TokenKind::real);
        CHECK(tokens.list.size() == 2);
        CHECK(first_error(real).empty());
    }
    for (const char* wrong : {"1.0f", "2x", "0x", "0b12", "0o8", "1_", "1__0", "0x_1", "1e5x"}) {
        CAPTURE(wrong);
        CHECK(first_error(wrong).starts_with("malformed number"));
    }
    CHECK(first_error("007") == "an integer does not start with 0");
    CHECK(first_error("00").empty());
}

TEST_CASE("a newline counts outside closed parentheses and brackets only") {
    CHECK(lexed("a\nb") == "a | b");
    CHECK(lexed("f(a,\nb)\nc") == "f ( a , b ) | c");
    CHECK(lexed("t[a\n]\nc") == "t [ a ] | c");
    CHECK(lexed("{a\nb}") == "{ a | b }");
    CHECK(lexed("(a {\nb\n})\nc") == "( a { | b | } ) | c");
    CHECK(lexed("(a\nb") == "( a | b"); // never closed
    CHECK(lexed("a \\\n b") == "a b");
    CHECK(lexed("a # b\r\nc\r\n") == "a | c |");
}

TEST_CASE("strings are one token, whatever is in them") {
    CHECK(lexed("'a # b' c") == "'a # b' c");
    CHECK(lexed("\"\"\"a\n\"b\" c\"\"\" d") == "\"\"\"a\n\"b\" c\"\"\" d");
    CHECK(lexed("f'x' rb\"y\" bad 'z'") == "f'x' rb\"y\" bad 'z'");
    CHECK(lexed("'it\\'s' b") == "'it\\'s' b");
    CHECK(first_error("'abc\nd") == "this string has no end");
    CHECK(first_error("'''abc") == "this string has no end");
    CHECK(first_error("'abc\\") == "this string has no end");
}

TEST_CASE("texts that are no programs") {
    CHECK(first_error(std::string("a\0b", 3)) == "the text has a NUL byte");
    CHECK(first_error("a\xFF") == "the text is not UTF-8");
    CHECK(first_error("\xC0\x80") == "the text is not UTF-8");         // overlong
    CHECK(first_error("\xED\xA0\x80") == "the text is not UTF-8");     // surrogate
    CHECK(first_error("\xF4\x90\x80\x80") == "the text is not UTF-8"); // past the end
    CHECK(first_error("\xE2\x89") == "the text is not UTF-8");         // cut off
    CHECK(first_error(std::string(kMaxSourceBytes, ' ')).empty());
    CHECK(first_error(std::string(kMaxSourceBytes + 1, ' ')) ==
          "the text is 65537 bytes long; the limit is 65,536");
}

TEST_CASE("a byte order mark is skipped") { CHECK(lexed("\xEF\xBB\xBFscore") == "score"); }

TEST_CASE("the token print names place, kind and text") {
    CHECK(print_tokens(Source("test", "score + h # x\nif 2.5")) ==
          "1:1     identifier          score\n"
          "1:7     plus                +\n"
          "1:9     identifier          h\n"
          "1:14    newline\n"
          "2:1     if                  if\n"
          "2:4     real                2.5\n"
          "2:7     end\n");
}
