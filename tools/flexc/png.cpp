#include "flexc/png.h"

#include <algorithm>
#include <array>

#include "flexc/whole_file.h"

namespace flexc::cli {
namespace {

void append_word(std::string& to, std::uint32_t word) {
    for (int shift = 24; shift >= 0; shift -= 8) {
        to += static_cast<char>(word >> shift & 0xff);
    }
}

std::uint32_t cyclic_redundancy(std::string_view bytes) {
    std::uint32_t remainder = 0xffffffff;
    for (const char byte : bytes) {
        remainder ^= static_cast<std::uint8_t>(byte);
        for (int bit = 0; bit < 8; ++bit) {
            remainder = remainder >> 1 ^ (remainder & 1 ? 0xedb88320 : 0);
        }
    }
    return ~remainder;
}

std::uint32_t adler(std::string_view bytes) {
    std::uint32_t sum = 1, sum_of_sums = 0;
    for (const char byte : bytes) {
        sum = (sum + static_cast<std::uint8_t>(byte)) % 65521;
        sum_of_sums = (sum_of_sums + sum) % 65521;
    }
    return sum_of_sums << 16 | sum;
}

void append_chunk(std::string& to, std::string_view type, std::string_view data) {
    append_word(to, static_cast<std::uint32_t>(data.size()));
    const std::string body = std::string(type) + std::string(data);
    to += body;
    append_word(to, cyclic_redundancy(body));
}

// The zlib format, with blocks that are not compressed: maps are small.
std::string stored(std::string_view bytes) {
    constexpr std::size_t kMost = 0xffff;
    std::string result = "\x78\x01";
    for (std::size_t begin = 0;; begin += kMost) {
        const auto block = bytes.substr(begin, kMost);
        const bool is_last = begin + kMost >= bytes.size();
        result += is_last ? '\x01' : '\x00';
        const auto size = static_cast<std::uint16_t>(block.size());
        for (const std::uint16_t word : {size, static_cast<std::uint16_t>(~size)}) {
            result += static_cast<char>(word & 0xff);
            result += static_cast<char>(word >> 8);
        }
        result += block;
        if (is_last) {
            break;
        }
    }
    append_word(result, adler(bytes));
    return result;
}

} // namespace

std::string encode_png(const Picture& picture) {
    std::string header;
    append_word(header, static_cast<std::uint32_t>(picture.width));
    append_word(header, static_cast<std::uint32_t>(picture.height));
    header += std::string("\x08\x00\x00\x00\x00", 5); // 8 bits of grey, no interlacing
    std::string rows;
    for (int row = 0; row < picture.height; ++row) {
        rows += '\0'; // no filter
        const auto* first = picture.pixels.data() +
                            static_cast<std::size_t>(row) * static_cast<std::size_t>(picture.width);
        rows.append(reinterpret_cast<const char*>(first), static_cast<std::size_t>(picture.width));
    }
    std::string file = "\x89PNG\r\n\x1a\n";
    append_chunk(file, "IHDR", header);
    append_chunk(file, "IDAT", stored(rows));
    append_chunk(file, "IEND", "");
    return file;
}

Result<void> write_png(const std::string& path, const Picture& picture) {
    const auto bytes = encode_png(picture);
    const std::string_view part = bytes;
    return write_whole_file(path, {&part, 1});
}

} // namespace flexc::cli
