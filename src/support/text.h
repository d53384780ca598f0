// Formatted text. fmt's code is compiled once, in text.cpp: every file that called it would carry
// and optimise its own copy, which was half of the build's time.
#pragma once

#include <cstdio>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace flexc {

std::string format_text(fmt::string_view text, fmt::format_args arguments);

template <typename... Arguments>
std::string formatted(fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    return format_text(text, fmt::make_format_args(arguments...));
}

template <typename... Arguments>
void print(std::FILE* to, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
    std::fputs(format_text(text, fmt::make_format_args(arguments...)).c_str(), to);
}

// [1, 2, 3] with ", " is "1, 2, 3".
template <typename Range> std::string joined(const Range& parts, std::string_view separator) {
    std::string all;
    bool first = true;
    for (const auto& part : parts) {
        if (!first) all += separator;
        all += formatted("{}", part);
        first = false;
    }
    return all;
}

} // namespace flexc
