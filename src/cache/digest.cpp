#include "cache/digest.h"

// The names that cmake/sha256.cmake gives them. libcrypto's newer interface would bring all of
// libcrypto with it, these three functions alone need nothing else.
#define SHA256_Init flexc_SHA256_Init
#define SHA256_Update flexc_SHA256_Update
#define SHA256_Final flexc_SHA256_Final
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

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
    constexpr std::string_view kHexDigits = "0123456789abcdef";
    std::string text;
    text.reserve(kDigits);
    for (const unsigned char byte : bytes) {
        text += kHexDigits[byte >> 4];
        text += kHexDigits[byte & 15];
    }
    return text;
}

std::optional<Digest> Digest::parse(std::string_view hex) {
    if (hex.size() != kDigits) return std::nullopt;
    Digest digest;
    for (std::size_t i = 0; i < kSize; ++i) {
        const int high = digit_value(hex[2 * i]);
        const int low = digit_value(hex[2 * i + 1]);
        if (high < 0 || low < 0) return std::nullopt;
        digest.bytes[i] = static_cast<unsigned char>(high << 4 | low);
    }
    return digest;
}

Digest digest_of(std::string_view bytes) {
    Digest digest;
    SHA256_CTX state;
    SHA256_Init(&state);
    SHA256_Update(&state, bytes.data(), bytes.size());
    SHA256_Final(digest.bytes.data(), &state);
    return digest;
}

void KeyBuilder::append(std::string_view bytes) {
    append_number(text_, bytes.size());
    text_ += bytes;
}

KeyBuilder& KeyBuilder::field(std::string_view label, std::string_view bytes) {
    append(label);
    append(bytes);
    return *this;
}

KeyBuilder& KeyBuilder::field(std::string_view label, std::uint64_t number) {
    std::string bytes;
    append_number(bytes, number);
    return field(label, std::string_view(bytes));
}

} // namespace flexc::cache
