// Quotes the user's program in generated text.
#pragma once

#include <string>
#include <string_view>

namespace flexc::cuda {

// Returns the source as // comments, with no backslash at the end of a line, which would continue
// the comment.
std::string quoted(std::string_view source);

} // namespace flexc::cuda
