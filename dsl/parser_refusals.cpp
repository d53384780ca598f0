// What pasted Python has and this language has not: each refusal says what to write instead.
#include <algorithm>
#include <array>

#include "dsl/parser_state.h"

namespace flexc::dsl {

namespace {

struct Refusal {
    std::string_view word;
    std::string_view message;
    std::string_view hint;
};

constexpr std::string_view kNoIf = "if statements are not supported";
constexpr std::string_view kIfHint =
    "write a if c else b, or where(c, a, b), and one return at the end";

constexpr auto kStatements = std::to_array<Refusal>({
    {"if", kNoIf, kIfHint},
    {"elif", kNoIf, kIfHint},
    {"else", "'else' without a value before it", kIfHint},
    {"for", "loops are not supported", "write the terms out, or read a buffer"},
    {"while", "loops are not supported", "write the terms out, or read a buffer"},
    {"import", "imports are not supported",
     "delete the line: torch. and math. prefixes are dropped"},
    {"from", "imports are not supported", "delete the line: torch. and math. prefixes are dropped"},
    {"def", "a function inside a function inside a body is not supported",
     "define it in the outer function, or at the top level"},
    {"fn", "a function inside a body is not supported", "define it at the top level"},
    {"buffer", "buffers are declared outside bodies", "move the line above the body"},
    {"param", "params are declared outside bodies", "move the line above the body"},
    {"const", "consts are declared outside bodies",
     "move the line above the body, or drop the word const"},
    {"class", "classes are not supported", "write the body of the mod alone"},
    {"with", "'with' is not supported", ""},
    {"try", "'try' is not supported", ""},
    {"assert", "'assert' is not supported", "delete the line"},
    {"pass", "'pass' is not supported", "delete the line"},
    {"print", "a mod cannot print", "delete the line"},
    {"global", "'global' is not supported",
     "delete the line: every body sees the names at the top"},
    {"nonlocal", "'nonlocal' is not supported", "delete the line"},
    {"raise", "'raise' is not supported", ""},
    {"del", "'del' is not supported", "delete the line"},
    {"yield", "'yield' is not supported", "return one value"},
    {"async", "'async' is not supported", ""},
});

constexpr std::array<std::string_view, 8> kModules = {"np", "numpy", "jnp", "jax",
                                                      "F",  "nn",    "tl",  "cmath"};

// Methods of tensors that are no functions of the same name and arguments here: method_hint() says
// what to write. Any other is a call of the function.
constexpr auto kNoFunctions = std::to_array<std::string_view>(
    {"to",   "type",  "astype", "double",      "half",       "bfloat16", "long",  "short",
     "item", "clone", "detach", "size",        "contiguous", "shape",    "numel", "where",
     "sum",  "mean",  "min",    "masked_fill", "max",        "clip"});

bool contains(std::string_view text, std::string_view part) { return text.find(part) != text.npos; }

std::string method_hint(const std::string& object, std::string_view method,
                        std::string_view arguments) {
    const std::string rest = arguments.empty() ? "" : ", " + std::string(arguments);
    if (method == "to" || method == "type" || method == "astype") {
        const bool integer = contains(arguments, "int") || contains(arguments, "long");
        return "write " +
               std::string(contains(arguments, "bool") ? "bool"
                           : integer                   ? "int"
                                                       : "float") +
               "(" + object + ")";
    }
    if (method == "double" || method == "half" || method == "bfloat16")
        return "write float(" + object + ")";
    if (method == "long" || method == "short") return "write int(" + object + ")";
    if (method == "item" || method == "clone" || method == "detach" || method == "contiguous")
        return "write " + object;
    if (method == "size" || method == "shape" || method == "numel")
        return "sizes have names: B H H_KV Q_LEN KV_LEN D DV, and those in a buffer's dims";
    if (method == "masked_fill") {
        const std::size_t comma = arguments.find(',');
        if (comma != arguments.npos)
            return "write where(" + std::string(arguments.substr(0, comma)) + "," +
                   std::string(arguments.substr(comma + 1)) + ", " + object + ")";
    }
    if (method == "where" && !arguments.empty()) {
        const std::size_t comma = arguments.find(',');
        return "write where(" + std::string(arguments.substr(0, comma)) + ", " + object +
               (comma == arguments.npos ? "" : std::string(arguments.substr(comma))) + ")";
    }
    if (method == "sum" || method == "mean")
        return "write sum(i in 0..R: ...) with the term for one i in it, where R is the name of "
               "the buffer's dim";
    if (method == "min" || method == "max" || method == "clip")
        return "write " + std::string(method == "clip" ? "clamp" : method) + "(" + object + rest +
               ")";
    return "a value has no attributes";
}

} // namespace

// True and an error when an operator of Python's is next that does not exist here.
bool Parser::refuse_operator() {
    switch (token().kind) {
    case TokenKind::kw_is:
        error(token().span, "'is' is not supported", "write '==', or '!=' for 'is not'");
        return true;
    case TokenKind::kw_not:
        if (!at(TokenKind::kw_in, 1)) return false;
        [[fallthrough]];
    case TokenKind::kw_in:
        error(token().span, "'in' is not supported", "compare with each value: x == 1 or x == 2");
        return true;
    case TokenKind::walrus:
        error(token().span, "':=' is not supported", "assign in a statement of its own");
        return true;
    case TokenKind::at:
        error(token().span, "matrix products are not supported",
              "a mod works on one number at a time");
        return true;
    default: return false;
    }
}

// At the '.' after a value.
bool Parser::at_method(ExprId base) const {
    const Expr& object = result_.ast[base];
    const bool is_module = object.kind == ExprKind::name &&
                           (object.name == "self" || std::ranges::count(kModules, object.name) > 0);
    return !is_module && at(TokenKind::identifier, 1) && at(TokenKind::left_paren, 2) &&
           std::ranges::count(kNoFunctions, source_.slice(token(1).span)) == 0;
}

void Parser::refuse_attribute(ExprId base) {
    const Span object_span = result_.ast[base].span;
    const bool grouped = result_.ast[base].parenthesised;
    const std::string object =
        grouped ? text(Span{object_span.begin + 1, object_span.end - 1}) : text(object_span);
    const Token name = token(1);
    if (name.kind != TokenKind::identifier) {
        unexpected("an operator");
        return;
    }
    const std::string word = text(name);
    const bool is_name = result_.ast[base].kind == ExprKind::name;
    if (is_name && std::find(kModules.begin(), kModules.end(), object) != kModules.end()) {
        error({object_span.begin, name.span.end}, "'" + object + "' is not known",
              "write " + word + ", or torch." + word);
        return;
    }
    if (is_name && object == "self") {
        error({object_span.begin, name.span.end}, "attributes are not supported",
              "declare 'buffer " + word + ": f32[...]' or 'param " + word + ": f32', and write " +
                  word);
        return;
    }
    const bool is_call = at(TokenKind::left_paren, 2) && token(2).has_partner;
    std::string arguments;
    if (is_call) {
        std::size_t depth = 0, ahead = 2;
        for (;; ++ahead) {
            if (at(TokenKind::left_paren, ahead)) ++depth;
            if (at(TokenKind::right_paren, ahead) && token(ahead).has_partner && --depth == 0)
                break;
            if (at(TokenKind::end, ahead)) break;
        }
        arguments = text(Span{token(2).span.end, token(ahead).span.begin});
        if (arguments.size() > 60) arguments = "...";
    }
    error({token().span.begin, name.span.end},
          is_call ? "methods are not supported" : "attributes are not supported",
          method_hint(object, word, arguments));
}

// True and an error when a statement of Python's is next that does not exist here.
bool Parser::refuse_statement() {
    const bool keyword = at(TokenKind::kw_if) || at(TokenKind::kw_else);
    if (!keyword && !at(TokenKind::identifier)) return false;
    const std::string word = text(token());
    const auto* row = std::find_if(kStatements.begin(), kStatements.end(),
                                   [&](const Refusal& refusal) { return refusal.word == word; });
    if (row == kStatements.end()) return false;
    if (!keyword) {
        // These words are ordinary names in front of an operator.
        const TokenKind next = token(1).kind;
        const bool declares =
            word == "buffer" || word == "param" || word == "const" || word == "fn" || word == "def";
        const bool value = next == TokenKind::integer || next == TokenKind::string ||
                           next == TokenKind::kw_true || next == TokenKind::kw_false ||
                           next == TokenKind::kw_not || next == TokenKind::left_paren;
        const bool ends = next == TokenKind::newline || next == TokenKind::colon ||
                          next == TokenKind::at || next == TokenKind::end;
        const bool is_statement = next == TokenKind::identifier || (!declares && (value || ends));
        if (!is_statement) return false;
    }
    error(token().span, std::string(row->message), std::string(row->hint));
    return true;
}

} // namespace flexc::dsl
