#pragma once

#include <string>
#include <string_view>

namespace flexc::test {

// Returns the text with every `from` replaced.
inline std::string replaced(std::string text, std::string_view from, std::string_view to) {
    for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size())
        text.replace(at, from.size(), to);
    return text;
}

} // namespace flexc::test
