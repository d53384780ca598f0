// What a mod of the library does, drawn in characters.
#pragma once

#include <string>
#include <vector>

#include "flexc/compile.h"

namespace flexc::cli {

// One string a query, one character a key: the weights of the first head where all scores are 0,
// from '#' for most of the row's largest down to '-', and '.' for what is hidden. Sizes, params and
// contents of buffers are those of the mod's line "# Example:". Runs on the CPU.
Result<std::vector<std::string>> picture_of(const LibraryEntry& entry);

} // namespace flexc::cli
