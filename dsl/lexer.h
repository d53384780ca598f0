// Text to tokens.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "dsl/diagnostic.h"
#include "dsl/source.h"

namespace flexc::dsl {

inline constexpr std::size_t kMaxSourceBytes = 65536;

enum class TokenKind : std::uint8_t {
#define FLEXC_TOKEN(name, spelling) name,
#include "dsl/tokens.def"
};
std::string_view spelling(TokenKind kind);

struct Token {
    TokenKind kind = TokenKind::end;
    bool starts_line = false;
    bool has_partner = false; // brackets: the other one is there
    std::uint32_t indent = 0; // of its line; a tab counts up to the next multiple of 8
    Span span;
};

// The last token is always `end`. Newlines inside closed () and [] are not tokens.
struct Tokens {
    std::vector<Token> list;
    Diagnostics diagnostics;
};
Tokens lex(const Source& source);

// One token a line: line:column, kind, text; then what is wrong.
std::string print_tokens(const Source& source);

} // namespace flexc::dsl
