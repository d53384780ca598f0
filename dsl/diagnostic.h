// What is wrong with a text, where, and what to write instead.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dsl/source.h"

namespace flexc::dsl {

enum class Severity : std::uint8_t { error, warning };

// A second place that explains the first: an opening bracket, an earlier declaration, a call.
struct Note {
    Span span;
    std::string message;
};

struct Diagnostic {
    Severity severity = Severity::error;
    Span span;
    std::string message;
    std::string hint; // without "hint:"; may be empty
    std::vector<Note> notes = {};
};

using Diagnostics = std::vector<Diagnostic>;

// file:line:col: error: message, the source line, a caret under the span, and the hint.
std::string render(const Source& source, const Diagnostic& diagnostic);
std::string render(const Source& source, const Diagnostics& diagnostics);
bool has_errors(const Diagnostics& diagnostics);

} // namespace flexc::dsl
