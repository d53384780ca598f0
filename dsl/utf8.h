// One code point of a UTF-8 text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace flexc::dsl {

struct CodePoint {
    std::uint32_t value = 0;
    std::uint32_t length = 1;
    bool valid = false;
};

// Precondition: at < text.size(). Overlong forms, surrogates and values past U+10FFFF are invalid.
CodePoint decode_utf8(std::string_view text, std::size_t at);

} // namespace flexc::dsl
