// The user's program inside generated text.
#pragma once

#include <string>
#include <string_view>

namespace flexc::cuda {

// As a comment. A backslash at the end of a line would continue it: there are none.
std::string quoted(std::string_view source);

} // namespace flexc::cuda
