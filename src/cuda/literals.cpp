#include <cmath>
#include <cstdint>
#include <limits>

#include "cuda/expressions.h"
#include "support/text.h"

namespace flexc::cuda {

const char* spelling(CType type) {
    switch (type) {
    case CType::boolean: return "bool";
    case CType::narrow: return "int";
    case CType::wide: return "long long";
    case CType::real: return "float";
    }
    return "float";
}

std::string unbracketed(std::string text) {
    if (text.size() < 2 || text.front() != '(' || text.back() != ')') return text;
    int depth = 0;
    for (std::size_t i = 0; i + 1 < text.size(); ++i) {
        depth += text[i] == '(' ? 1 : text[i] == ')' ? -1 : 0;
        if (depth == 0) return text; // the first bracket closes before the end
    }
    return text.substr(1, text.size() - 2);
}

std::string real_literal(double value) {
    const float narrowed = static_cast<float>(value);
    if (std::isnan(narrowed)) return "flexc_nan()";
    if (std::isinf(narrowed)) return narrowed > 0 ? "flexc_infinity()" : "(-flexc_infinity())";
    std::string text = formatted("{:.9g}", narrowed);
    // The shortest text that gives the same float is the one that people wrote.
    if (const std::string shorter = formatted("{}", narrowed); shorter.size() < text.size())
        text = shorter;
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    text += "f";
    return std::signbit(narrowed) ? "(" + text + ")" : text;
}

std::string integer_literal(std::int64_t value, CType type) {
    const char* suffix = type == CType::wide ? "ll" : "";
    const std::int64_t lowest = type == CType::wide ? std::numeric_limits<std::int64_t>::min()
                                                    : std::numeric_limits<std::int32_t>::min();
    // The lowest number has no literal: its magnitude does not fit.
    if (value == lowest) return formatted("({}{} - 1)", value + 1, suffix);
    return value < 0 ? formatted("({}{})", value, suffix) : formatted("{}{}", value, suffix);
}

} // namespace flexc::cuda
