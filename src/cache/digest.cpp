#include "cache/digest.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace flexc::cache {

namespace {

// The same bytes on every machine, so that a digest may be written to a file.
void append_number(std::string& message, std::uint64_t number) {
    for (int shift = 0; shift < 64; shift += 8)
        message += static_cast<char>(static_cast<unsigned char>(number >> shift));
}

int digit_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

} // namespace

std::string Digest::hex() const {
    constexpr std::string_view kDigits = "0123456789abcdef";
    std::string text;
    for (const std::uint64_t half : {high, low})
        for (int shift = 60; shift >= 0; shift -= 4)
            text += kDigits[(half >> shift) & 15];
    return text;
}

std::optional<Digest> Digest::parse(std::string_view hex) {
    if (hex.size() != 32) return std::nullopt;
    Digest digest;
    for (std::size_t i = 0; i < hex.size(); ++i) {
        const int value = digit_value(hex[i]);
        if (value < 0) return std::nullopt;
        std::uint64_t& half = i < 16 ? digest.high : digest.low;
        half = half << 4 | static_cast<std::uint64_t>(value);
    }
    return digest;
}

Digest digest_of(std::string_view bytes) {
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    return {hash.high64, hash.low64};
}

void DigestBuilder::append(std::string_view bytes) {
    append_number(message_, bytes.size());
    message_ += bytes;
}

DigestBuilder& DigestBuilder::field(std::string_view label, std::string_view bytes) {
    append(label);
    append(bytes);
    return *this;
}

DigestBuilder& DigestBuilder::field(std::string_view label, std::uint64_t number) {
    std::string bytes;
    append_number(bytes, number);
    return field(label, std::string_view(bytes));
}

DigestBuilder& DigestBuilder::field(std::string_view label, const Digest& digest) {
    std::string bytes;
    append_number(bytes, digest.high);
    append_number(bytes, digest.low);
    return field(label, std::string_view(bytes));
}

Digest DigestBuilder::finish() const { return digest_of(message_); }

} // namespace flexc::cache
