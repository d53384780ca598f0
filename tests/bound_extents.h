// Programs in which a call binds extents that another program's text has.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace flexc::test {

struct BoundExtents {
    std::string text;
    std::vector<std::int64_t> sizes; // of N0, N1, ...
};

// Makes some extents of learned buffers sizes of a call, at least one. below(n): a number that is
// less than n.
template <typename Below> BoundExtents with_bound_extents(std::string text, Below below) {
    std::vector<std::int64_t> sizes;
    const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    for (std::size_t end = text.find("] grad"); end != std::string::npos;
         end = text.find("] grad", end + 1))
        for (std::size_t at = text.rfind('[', end); at < end; ++at) {
            if (!is_digit(text[at]) || std::isalnum(static_cast<unsigned char>(text[at - 1])) != 0)
                continue;
            const auto from = text.begin() + static_cast<std::ptrdiff_t>(at);
            const auto digits = static_cast<std::size_t>(
                std::ranges::find_if_not(from, text.end(), is_digit) - from);
            if (!sizes.empty() && below(4) == 0) continue;
            const std::string name = "N" + std::to_string(sizes.size());
            sizes.push_back(std::stoll(text.substr(at, digits)));
            text.replace(at, digits, name);
            end = end + name.size() - digits;
        }
    return {std::move(text), std::move(sizes)};
}

} // namespace flexc::test
