// Attention weights as a picture of characters.
#pragma once

#include <span>
#include <string>

namespace flexc::demo {

// One line per query, two characters per key: hidden elements are dots, visible ones darker the
// larger their weight is.
std::string draw_weights(std::span<const float> weights, int queries, int keys);

} // namespace flexc::demo
