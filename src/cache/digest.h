// Names for content: SHA-256, because strangers choose the text and a name decides what code runs.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flexc::cache {

struct Digest {
    static constexpr std::size_t kSize = 32;
    static constexpr std::size_t kDigits = 2 * kSize;
    std::array<unsigned char, kSize> bytes{};

    friend auto operator<=>(const Digest&, const Digest&) = default;
    std::string_view view() const {
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }
    std::string hex() const; // 64 lower-case digits
    static std::optional<Digest> parse(std::string_view hex);
};

Digest digest_of(std::string_view bytes);

// Everything that determines a result, and its digest. The text is compared when an entry is found
// under the digest, so that two keys can never share a result.
struct Key {
    std::string text;
    Digest digest;
};

// Labels and lengths keep fields apart: ("a", "bc") and ("ab", "c") differ, and so does their
// order. Put a schema number first, and a field for everything that decides the bytes of the
// result.
class KeyBuilder {
  public:
    KeyBuilder& field(std::string_view label, std::string_view bytes);
    KeyBuilder& field(std::string_view label, const char* text) {
        return field(label, std::string_view(text));
    }
    KeyBuilder& field(std::string_view label, std::uint64_t number);
    KeyBuilder& field(std::string_view label, const Digest& digest) {
        return field(label, digest.view());
    }
    const std::string& text() const { return text_; }
    Key finish() const { return {text_, digest_of(text_)}; }

  private:
    void append(std::string_view bytes);
    std::string text_;
};

} // namespace flexc::cache
