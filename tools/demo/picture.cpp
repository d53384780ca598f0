#include "demo/picture.h"

#include <string_view>

namespace flexc::demo {
namespace {

// Weights fall by orders of magnitude along a row, so each shade stands for a factor of four.
std::string_view shade(float weight) {
    if (weight <= 0) {
        return "· ";
    }
    if (weight > 0.25F) {
        return "██";
    }
    if (weight > 0.0625F) {
        return "▓▓";
    }
    if (weight > 0.015625F) {
        return "▒▒";
    }
    return "░░";
}

} // namespace

std::string draw_weights(std::span<const float> weights, int queries, int keys) {
    std::string picture;
    for (int query = 0; query < queries; ++query) {
        picture += "    ";
        for (int key = 0; key < keys; ++key) {
            picture +=
                shade(weights[static_cast<std::size_t>(query) * static_cast<std::size_t>(keys) +
                              static_cast<std::size_t>(key)]);
        }
        picture += '\n';
    }
    return picture;
}

} // namespace flexc::demo
