// Pictures as PNG files, in shades of grey.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "flexc/result.h"

namespace flexc::cli {

struct Picture {
    int width = 0, height = 0;
    std::vector<std::uint8_t> pixels; // rows from the top, 0 is black

    Picture(int columns, int rows, std::uint8_t shade)
        : width(columns), height(rows),
          pixels(static_cast<std::size_t>(columns) * static_cast<std::size_t>(rows), shade) {}
    std::uint8_t& at(int column, int row) {
        return pixels[static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
                      static_cast<std::size_t>(column)];
    }
};

std::string encode_png(const Picture& picture);
Result<void> write_png(const std::string& path, const Picture& picture);

} // namespace flexc::cli
