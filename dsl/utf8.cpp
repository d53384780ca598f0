#include "dsl/utf8.h"

namespace flexc::dsl {

CodePoint decode_utf8(std::string_view text, std::size_t at) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const std::uint32_t first = byte(at);
    if (first < 0x80) return {first, 1, true};
    const std::uint32_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    if (first < 0xC2 || first > 0xF4 || at + length > text.size()) return {first, 1, false};
    std::uint32_t value = first & (0x7Fu >> length);
    for (std::uint32_t i = 1; i < length; ++i) {
        if ((byte(at + i) & 0xC0) != 0x80) return {first, 1, false};
        value = value << 6 | (byte(at + i) & 0x3Fu);
    }
    const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
    const bool surrogate = value >= 0xD800 && value <= 0xDFFF;
    if (overlong || surrogate || value > 0x10FFFF) return {first, 1, false};
    return {value, length, true};
}

} // namespace flexc::dsl
