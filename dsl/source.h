// Source text, and places in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flexc::dsl {

// Bytes [begin, end) of a source. An empty span at 0 stands for "no place".
struct Span {
    std::uint32_t begin = 0;
    std::uint32_t end = 0;
};

struct Position {
    std::uint32_t line = 1;   // from 1
    std::uint32_t column = 1; // from 1, counted in UTF-8 code points
};

class Source {
  public:
    Source() = default;
    Source(std::string name, std::string text) : name_(std::move(name)), text_(std::move(text)) {}

    const std::string& name() const { return name_; }
    std::string_view text() const { return text_; }
    std::string_view slice(Span span) const;
    Position position(std::uint32_t offset) const;
    std::string_view line(std::uint32_t number) const; // without its newline

  private:
    std::string name_ = "<text>";
    std::string text_;
};

} // namespace flexc::dsl
