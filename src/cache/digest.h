// 128-bit names for content: XXH3 over labelled, length-prefixed fields.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flexc::cache {

struct Digest {
    std::uint64_t high = 0;
    std::uint64_t low = 0;

    friend auto operator<=>(const Digest&, const Digest&) = default;
    std::string hex() const; // 32 lower-case digits
    static std::optional<Digest> parse(std::string_view hex);
};

struct DigestHash {
    std::size_t operator()(const Digest& digest) const noexcept {
        return static_cast<std::size_t>(digest.low);
    }
};

// Of bytes alone.
Digest digest_of(std::string_view bytes);

// Labels and lengths keep fields apart: ("a", "bc") and ("ab", "c") differ, and so does their
// order. Put a schema number first, and a field for everything that decides the bytes of the
// result.
class DigestBuilder {
  public:
    DigestBuilder& field(std::string_view label, std::string_view bytes);
    DigestBuilder& field(std::string_view label, const char* text) {
        return field(label, std::string_view(text));
    }
    DigestBuilder& field(std::string_view label, std::uint64_t number);
    DigestBuilder& field(std::string_view label, const Digest& digest);
    Digest finish() const;

  private:
    void append(std::string_view bytes);
    std::string message_;
};

} // namespace flexc::cache
