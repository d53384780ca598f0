// Text files of the repository that are compiled into the library; see cmake/embed.cmake.
#pragma once

#include <span>
#include <string_view>

namespace flexc::embedded {

struct EmbeddedFile {
    std::string_view path; // relative to the embedded folder
    std::string_view text;
    std::string_view digest; // SHA-256, 64 hex digits
};

std::span<const EmbeddedFile> library();   // dsl/library
std::span<const EmbeddedFile> templates(); // templates
std::span<const EmbeddedFile> cpu_math();  // src/cpu/*.ll.in

} // namespace flexc::embedded
