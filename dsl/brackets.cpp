#include "dsl/brackets.h"

#include <array>

namespace flexc::dsl {

namespace {

// 0, 1, 2 for the three kinds, counted from the first one's token; -1 for anything else.
int kind_of_bracket(TokenKind kind, TokenKind first) {
    const int offset = static_cast<int>(kind) - static_cast<int>(first);
    return offset == 0 || offset == 2 || offset == 4 ? offset / 2 : -1;
}

} // namespace

void match_brackets(std::vector<Token>& tokens) {
    constexpr int kBrace = 2;
    std::vector<std::size_t> open;
    std::vector<std::array<std::size_t, 2>> counts = {{0, 0}}; // of ( and [, in each brace
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const int opener = kind_of_bracket(tokens[i].kind, TokenKind::left_paren);
        const int closer = kind_of_bracket(tokens[i].kind, TokenKind::right_paren);
        if (opener >= 0) {
            open.push_back(i);
            if (opener == kBrace)
                counts.push_back({0, 0});
            else
                ++counts.back()[static_cast<std::size_t>(opener)];
            continue;
        }
        if (closer < 0) continue;
        if (closer == kBrace ? counts.size() == 1
                             : counts.back()[static_cast<std::size_t>(closer)] == 0)
            continue;
        for (int found = -1; found != closer; open.pop_back()) {
            found = kind_of_bracket(tokens[open.back()].kind, TokenKind::left_paren);
            if (found == kBrace)
                counts.pop_back();
            else
                --counts.back()[static_cast<std::size_t>(found)];
            if (found == closer) tokens[open.back()].has_partner = tokens[i].has_partner = true;
        }
    }
}

void drop_inner_newlines(std::vector<Token>& tokens) {
    std::vector<Token> kept;
    kept.reserve(tokens.size());
    std::vector<bool> keeps_newlines = {true};
    for (const Token& token : tokens) {
        if (token.kind == TokenKind::newline && !keeps_newlines.back()) continue;
        if (token.has_partner) {
            if (kind_of_bracket(token.kind, TokenKind::left_paren) >= 0)
                keeps_newlines.push_back(token.kind == TokenKind::left_brace);
            else
                keeps_newlines.pop_back();
        }
        kept.push_back(token);
    }
    tokens = std::move(kept);
}

} // namespace flexc::dsl
