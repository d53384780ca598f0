#include "dsl/diagnostic.h"

#include <algorithm>

namespace flexc::dsl {

namespace {

// A longer source line is shown as a window around the caret.
constexpr std::size_t kWindow = 140;

// One cell of the terminal: a code point, with tabs and control characters made harmless.
std::vector<std::string> cells_of(std::string_view line, std::size_t begin, std::size_t end,
                                  std::size_t& first, std::size_t& last) {
    std::vector<std::string> cells;
    first = last = std::string_view::npos;
    for (std::size_t i = 0; i < line.size();) {
        if (i >= begin && first == std::string_view::npos) first = cells.size();
        if (i >= end && last == std::string_view::npos) last = cells.size();
        const unsigned char byte = static_cast<unsigned char>(line[i]);
        std::size_t length = 1;
        while (byte >= 0xC0 && i + length < line.size() &&
               (static_cast<unsigned char>(line[i + length]) & 0xC0) == 0x80)
            ++length;
        if (byte == '\t')
            cells.insert(cells.end(), 4, " ");
        else if (byte < 0x20 || byte == 0x7F || (byte >= 0x80 && length == 1))
            cells.emplace_back("?");
        else
            cells.emplace_back(line.substr(i, length));
        i += length;
    }
    if (first == std::string_view::npos) first = cells.size();
    if (last == std::string_view::npos) last = cells.size();
    return cells;
}

void append_excerpt(std::string& out, const Source& source, Span span, std::uint32_t line_number) {
    const std::string_view line = source.line(line_number);
    const std::size_t line_begin = static_cast<std::size_t>(line.data() - source.text().data());
    const std::size_t begin = span.begin - std::min<std::size_t>(span.begin, line_begin);
    const std::size_t end = std::max<std::size_t>(span.end, span.begin) - line_begin;
    std::size_t first = 0, last = 0;
    const std::vector<std::string> cells = cells_of(line, begin, end, first, last);

    std::size_t from = 0, to = cells.size();
    if (cells.size() > kWindow) {
        from = first > kWindow / 3 ? first - kWindow / 3 : 0;
        to = std::min(cells.size(), from + kWindow);
    }
    std::string number = std::to_string(line_number);
    number.insert(0, number.size() < 5 ? 5 - number.size() : 0, ' ');
    out += number + " | ";
    if (from > 0) out += "...";
    for (std::size_t i = from; i < to; ++i)
        out += cells[i];
    if (to < cells.size()) out += "...";
    out += '\n';
    out.append(number.size(), ' ');
    out += " | ";
    if (from > 0) out += "   ";
    out.append(first - from, ' ');
    out += '^';
    const std::size_t underline_end = std::min(last, to);
    if (underline_end > first + 1) out.append(underline_end - first - 1, '~');
    out += '\n';
}

void append_place(std::string& out, const Source& source, Span span, std::string_view label,
                  std::string_view message) {
    out += source.name();
    const bool has_place = span.end > 0;
    const Position position = source.position(span.begin);
    if (has_place)
        out += ":" + std::to_string(position.line) + ":" + std::to_string(position.column);
    out += ": ";
    out += label;
    out += ": ";
    out += message;
    out += '\n';
    if (has_place) append_excerpt(out, source, span, position.line);
}

} // namespace

std::string render(const Source& source, const Diagnostic& diagnostic) {
    std::string out;
    append_place(out, source, diagnostic.span,
                 diagnostic.severity == Severity::error ? "error" : "warning", diagnostic.message);
    if (!diagnostic.hint.empty()) out += "      = hint: " + diagnostic.hint + "\n";
    for (const Note& note : diagnostic.notes)
        append_place(out, source, note.span, "note", note.message);
    return out;
}

std::string render(const Source& source, const Diagnostics& diagnostics) {
    std::string out;
    for (const Diagnostic& diagnostic : diagnostics)
        out += render(source, diagnostic);
    return out;
}

bool has_errors(const Diagnostics& diagnostics) {
    return std::any_of(diagnostics.begin(), diagnostics.end(), [](const Diagnostic& diagnostic) {
        return diagnostic.severity == Severity::error;
    });
}

} // namespace flexc::dsl
