// What is wrong with a text, where, and what to write instead.
#pragma once

#include <string>
#include <vector>

#include "dsl/source.h"

namespace flexc::dsl {

enum class Severity : std::uint8_t { error, warning };

struct Diagnostic {
    Severity severity = Severity::error;
    Span span;
    std::string message;
    std::string hint; // without "hint:"; may be empty
};

using Diagnostics = std::vector<Diagnostic>;

// file:line:col: error: message, the source line, a caret under the span, and the hint.
std::string render(const Source& source, const Diagnostic& diagnostic);
std::string render(const Source& source, const Diagnostics& diagnostics);
bool has_errors(const Diagnostics& diagnostics);

} // namespace flexc::dsl
