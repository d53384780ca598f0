// Names that other programs use for element types.
#pragma once

#include <string_view>

namespace flexc::support {

// float32 -> f32, in any case; empty when the name is no type anywhere, or ours.
std::string_view usual_type(std::string_view name);

} // namespace flexc::support
