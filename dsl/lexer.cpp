#include "dsl/lexer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "dsl/brackets.h"
#include "dsl/utf8.h"

namespace flexc::dsl {

namespace {

struct Spelled {
    std::string_view text;
    TokenKind kind;
};

constexpr auto kSymbols = std::to_array<Spelled>({
#define FLEXC_SYMBOL(name, spelling) {spelling, TokenKind::name},
#include "dsl/tokens.def"
});

constexpr auto kKeywords = std::to_array<Spelled>({
#define FLEXC_KEYWORD(name, spelling) {spelling, TokenKind::name},
#include "dsl/tokens.def"
    {"True", TokenKind::kw_true},
    {"False", TokenKind::kw_false},
});

// Comparisons of other languages.
constexpr auto kMisspelled = std::to_array<std::pair<std::string_view, std::string_view>>(
    {{"===", "=="}, {"!==", "!="}, {"=>", ">="}, {"=<", "<="}, {"<>", "!="}});

constexpr std::size_t kMaxLexErrors = 20;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_word(char c) { return is_letter(c) || is_digit(c); }

// Characters that editors and web pages put in place of what a program needs.
std::string_view plain_form(std::uint32_t code_point) {
    switch (code_point) {
    case 0x2264: return "<=";
    case 0x2265: return ">=";
    case 0x2260: return "!=";
    case 0x2212:
    case 0x2013:
    case 0x2014: return "-";
    case 0x00D7:
    case 0x00B7:
    case 0x22C5: return "*";
    case 0x00F7: return "/";
    case 0x2227: return "and";
    case 0x2228: return "or";
    case 0x00AC: return "not";
    case 0x221E: return "inf";
    case 0x03C0: return "pi";
    case 0x2018:
    case 0x2019: return "'";
    case 0x201C:
    case 0x201D: return "\"";
    case 0x00A0:
    case 0x3000: return "a space";
    default: return {};
    }
}

class Lexer {
  public:
    explicit Lexer(const Source& source) : text_(source.text()) {}

    Tokens run() {
        if (check_text()) scan();
        add_end();
        match_brackets(result_.list);
        drop_inner_newlines(result_.list);
        return std::move(result_);
    }

  private:
    // Whether the text may be scanned at all.
    bool check_text() {
        if (text_.size() > kMaxSourceBytes) {
            error({}, "the text is " + std::to_string(text_.size()) +
                          " bytes long; the limit is 65,536");
            return false;
        }
        for (std::size_t at = 0; at < text_.size();) {
            const CodePoint point = decode_utf8(text_, at);
            if (!point.valid) {
                error(span(at, at + 1), "the text is not UTF-8", "save the file as UTF-8");
                return false;
            }
            if (point.value == 0) {
                error(span(at, at + 1), "the text has a NUL byte");
                return false;
            }
            at += point.length;
        }
        return true;
    }

    void scan() {
        if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
        measure_indent();
        while (at_ < text_.size() && result_.diagnostics.size() < kMaxLexErrors) {
            const char c = text_[at_];
            if (c == '\n' || c == '\r') {
                const std::size_t begin = at_;
                at_ += text_.substr(at_, 2) == "\r\n" ? 2 : 1;
                add(TokenKind::newline, begin, begin + 1);
                measure_indent();
            } else if (c == ' ' || c == '\t' || c == '\f' || c == '\v') {
                ++at_;
            } else if (c == '#') {
                while (at_ < text_.size() && text_[at_] != '\n' && text_[at_] != '\r')
                    ++at_;
            } else if (c == '\\') {
                line_continuation();
            } else if (is_letter(c)) {
                word();
            } else if (is_digit(c) ||
                       (c == '.' && at_ + 1 < text_.size() && is_digit(text_[at_ + 1]))) {
                number();
            } else if (c == '"' || c == '\'') {
                string(at_);
            } else {
                symbol();
            }
        }
    }

    void measure_indent() {
        indent_ = 0;
        starts_line_ = true;
        for (std::size_t i = at_; i < text_.size(); ++i) {
            if (text_[i] == ' ')
                ++indent_;
            else if (text_[i] == '\t')
                indent_ = (indent_ / 8 + 1) * 8;
            else
                break;
        }
    }

    void line_continuation() {
        std::size_t next = at_ + 1;
        if (next < text_.size() && text_[next] == '\r') ++next;
        if (next < text_.size() && text_[next] == '\n') {
            at_ = next + 1;
            return;
        }
        error(span(at_, at_ + 1), "unexpected '\\'",
              "a backslash may only end a line that goes on in the next one");
        ++at_;
    }

    void word() {
        const std::size_t begin = at_;
        while (at_ < text_.size() && is_word(text_[at_]))
            ++at_;
        const std::string_view text = text_.substr(begin, at_ - begin);
        // r"", f"", b"" and their pairs are strings with a prefix.
        if (text.size() <= 2 && at_ < text_.size() && (text_[at_] == '"' || text_[at_] == '\'') &&
            text.find_first_not_of("rRfFbBuU") == std::string_view::npos) {
            string(begin);
            return;
        }
        const auto* keyword =
            std::find_if(kKeywords.begin(), kKeywords.end(),
                         [&](const Spelled& entry) { return entry.text == text; });
        add(keyword != kKeywords.end() ? keyword->kind : TokenKind::identifier, begin, at_);
    }

    void number() {
        const std::size_t begin = at_;
        TokenKind kind = TokenKind::integer;
        bool malformed = false;
        const char radix = at_ + 1 < text_.size() && text_[at_] == '0'
                               ? static_cast<char>(text_[at_ + 1] | 0x20)
                               : ' ';
        if (radix == 'x' || radix == 'b' || radix == 'o') {
            at_ += 2;
            const std::size_t digits = at_;
            while (at_ < text_.size() && is_word(text_[at_])) {
                const char c = static_cast<char>(text_[at_] | 0x20);
                const bool fits = text_[at_] == '_' || (radix == 'b' && (c == '0' || c == '1')) ||
                                  (radix == 'o' && c >= '0' && c <= '7') ||
                                  (radix == 'x' && (is_digit(c) || (c >= 'a' && c <= 'f')));
                malformed |= !fits;
                ++at_;
            }
            malformed |= digits == at_ || text_[digits] == '_';
        } else {
            digits();
            // 0..4 is a range, not 0. and .4.
            if (at_ < text_.size() && text_[at_] == '.' && !text_.substr(at_).starts_with("..")) {
                kind = TokenKind::real;
                ++at_;
                digits();
            }
            if (at_ < text_.size() && (text_[at_] | 0x20) == 'e') {
                std::size_t next = at_ + 1;
                if (next < text_.size() && (text_[next] == '+' || text_[next] == '-')) ++next;
                if (next < text_.size() && is_digit(text_[next])) {
                    kind = TokenKind::real;
                    at_ = next;
                    digits();
                }
            }
        }
        const std::size_t tail = at_;
        while (at_ < text_.size() && is_word(text_[at_]))
            ++at_;
        const std::string_view text = text_.substr(begin, at_ - begin);
        malformed |= tail != at_ || text.ends_with('_') || text.find("__") != text.npos;
        if (malformed) {
            const std::string_view suffix = text_.substr(tail, at_ - tail);
            error(span(begin, at_), "malformed number '" + std::string(text) + "'",
                  suffix == "f" || suffix == "F"
                      ? "numbers have no suffix: write " + std::string(text.substr(0, tail - begin))
                  : tail != at_ ? "a name does not start with a digit; a product needs '*'"
                                : "");
        } else if (kind == TokenKind::integer && is_digit(radix) && text.size() > 1 &&
                   text[0] == '0' && text.find_first_not_of("0_") != text.npos) {
            error(span(begin, at_), "an integer does not start with 0",
                  "write " + std::string(text.substr(text.find_first_not_of("0_"))) + ", or 0o" +
                      std::string(text.substr(text.find_first_not_of("0_"))) +
                      " for an octal number");
        }
        add(kind, begin, at_);
    }

    void digits() {
        while (at_ < text_.size() && (is_digit(text_[at_]) || text_[at_] == '_'))
            ++at_;
    }

    // A string is never a value; it is scanned so that docstrings can be skipped and float("inf")
    // read.
    void string(std::size_t begin) {
        const std::string_view triple = text_.substr(at_, 3);
        const bool is_triple = triple == "\"\"\"" || triple == "'''";
        const std::string_view quote = text_.substr(at_, is_triple ? 3 : 1);
        const std::size_t quote_begin = at_;
        at_ += quote.size();
        while (at_ < text_.size() && !text_.substr(at_).starts_with(quote)) {
            if (!is_triple && (text_[at_] == '\n' || text_[at_] == '\r')) break;
            at_ += text_[at_] == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] != '\n' ? 2 : 1;
        }
        if (at_ < text_.size() && text_.substr(at_).starts_with(quote)) {
            at_ += quote.size();
        } else {
            at_ = std::min(at_, text_.size());
            error(span(quote_begin, quote_begin + quote.size()), "this string has no end");
        }
        add(TokenKind::string, begin, at_);
    }

    void symbol() {
        const std::string_view rest = text_.substr(at_);
        if (rest.starts_with("/*")) {
            const std::size_t close = rest.find("*/");
            const std::size_t length = close == rest.npos ? rest.size() : close + 2;
            error(span(at_, at_ + 2), "unexpected '/*'", "comments start with '#'");
            at_ += length;
            return;
        }
        for (const auto& [wrong, right] : kMisspelled) {
            if (!rest.starts_with(wrong)) continue;
            error(span(at_, at_ + wrong.size()), "unexpected '" + std::string(wrong) + "'",
                  "write " + std::string(right));
            at_ += wrong.size();
            return;
        }
        for (const Spelled& entry : kSymbols) {
            if (!rest.starts_with(entry.text)) continue;
            add(entry.kind, at_, at_ + entry.text.size());
            at_ += entry.text.size();
            return;
        }
        const CodePoint point = decode_utf8(text_, at_);
        const std::string_view plain = plain_form(point.value);
        std::string shown(rest.substr(0, point.length));
        if (point.value < 0x20 || point.value == 0x7F)
            shown = "control character " + std::to_string(point.value);
        else
            shown = "'" + shown + "'";
        error(span(at_, at_ + point.length), "unexpected " + shown,
              plain.empty() ? "" : "write " + std::string(plain));
        at_ += point.length;
    }

    void add(TokenKind kind, std::size_t begin, std::size_t end) {
        Token token;
        token.kind = kind;
        token.indent = indent_;
        token.starts_line = starts_line_ && kind != TokenKind::newline;
        token.span = span(begin, end);
        result_.list.push_back(token);
        if (kind != TokenKind::newline) starts_line_ = false;
    }

    // Stands after the last token, where something may be missing, not after trailing blank lines.
    void add_end() {
        std::size_t at = 0;
        for (const Token& token : result_.list)
            if (token.kind != TokenKind::newline) at = token.span.end;
        add(TokenKind::end, at, at);
    }

    static Span span(std::size_t begin, std::size_t end) {
        return {static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)};
    }

    void error(Span place, std::string message, std::string hint = {}) {
        result_.diagnostics.push_back(
            {.span = place, .message = std::move(message), .hint = std::move(hint)});
    }

    std::string_view text_;
    std::size_t at_ = 0;
    std::uint32_t indent_ = 0;
    bool starts_line_ = true;
    Tokens result_;
};

} // namespace

Tokens lex(const Source& source) { return Lexer(source).run(); }

} // namespace flexc::dsl
