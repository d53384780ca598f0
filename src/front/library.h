// The shipped mods, dsl/library/<group>/<name>.flex. Each file is a whole program, and defines a
// function of its own name that other programs can call.
#pragma once

#include <span>
#include <string_view>

namespace flexc::front {

struct LibraryMod {
    std::string_view name;
    std::string_view group;   // folder: "mask" or "score"
    std::string_view summary; // the first comment line
    std::string_view text;    // the whole program
};

std::span<const LibraryMod> library(); // by group, then name
const LibraryMod* find_library_mod(std::string_view name);

} // namespace flexc::front
