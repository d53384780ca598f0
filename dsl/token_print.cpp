#include <algorithm>
#include <array>

#include "dsl/lexer.h"

namespace flexc::dsl {

namespace {

constexpr auto kTokenNames = std::to_array<std::string_view>({
#define FLEXC_TOKEN(name, spelling) #name,
#include "dsl/tokens.def"
});
constexpr auto kSpellings = std::to_array<std::string_view>({
#define FLEXC_TOKEN(name, spelling) spelling,
#include "dsl/tokens.def"
});

} // namespace

std::string_view spelling(TokenKind kind) { return kSpellings[static_cast<std::size_t>(kind)]; }

std::string print_tokens(const Source& source) {
    std::string out;
    const Tokens tokens = lex(source);
    Position position;
    std::uint32_t at = 0;
    for (const Token& token : tokens.list) {
        // On from the token before, so that a long text takes linear time.
        const Source rest("", std::string(source.slice({at, token.span.begin})));
        const Position step = rest.position(token.span.begin - at);
        position.column = step.line > 1 ? step.column : position.column + step.column - 1;
        position.line += step.line - 1;
        at = token.span.begin;

        std::string place = std::to_string(position.line) + ":" + std::to_string(position.column);
        place.resize(std::max<std::size_t>(place.size() + 1, 8), ' ');
        std::string kind(kTokenNames[static_cast<std::size_t>(token.kind)]);
        if (kind.starts_with("kw_")) kind.erase(0, 3);
        out += place + kind;
        const bool shows_text = token.kind != TokenKind::newline && token.kind != TokenKind::end;
        if (shows_text) {
            out.append(std::max<std::size_t>(kind.size() + 1, 20) - kind.size(), ' ');
            const std::string_view text = source.slice(token.span);
            const std::size_t first_line = std::min(text.find('\n'), text.size());
            out += text.substr(0, first_line);
            if (first_line < text.size()) out += "...";
        }
        out += '\n';
    }
    return out + render(source, tokens.diagnostics);
}

} // namespace flexc::dsl
