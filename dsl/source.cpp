#include "dsl/source.h"

#include <algorithm>

namespace flexc::dsl {

std::string_view Source::slice(Span span) const {
    const std::string_view all = text_;
    const std::size_t begin = std::min<std::size_t>(span.begin, all.size());
    const std::size_t end = std::clamp<std::size_t>(span.end, begin, all.size());
    return all.substr(begin, end - begin);
}

Position Source::position(std::uint32_t offset) const {
    Position position;
    const std::size_t end = std::min<std::size_t>(offset, text_.size());
    for (std::size_t i = 0; i < end; ++i) {
        const unsigned char byte = static_cast<unsigned char>(text_[i]);
        if (byte == '\n') {
            ++position.line;
            position.column = 1;
        } else if ((byte & 0xC0) != 0x80) {
            ++position.column;
        }
    }
    return position;
}

std::string_view Source::line(std::uint32_t number) const {
    std::string_view rest = text_;
    for (std::uint32_t i = 1; i < number; ++i) {
        const std::size_t newline = rest.find('\n');
        if (newline == std::string_view::npos) return {};
        rest.remove_prefix(newline + 1);
    }
    rest = rest.substr(0, rest.find('\n'));
    if (rest.ends_with('\r')) rest.remove_suffix(1);
    return rest;
}

} // namespace flexc::dsl
