// The shipped mods, dsl/library/<group>/<page>.flex. A page is a title in a comment and a row of
// mods. A mod starts at a line "## name: What it does." and is a whole program, which defines a
// function of its own name that other programs can call.
#pragma once

#include <span>
#include <string_view>

namespace flexc::front {

struct LibraryMod {
    std::string_view name;
    std::string_view group;   // folder: "mask" or "score"
    std::string_view page;    // what its page is about: the title up to the colon
    std::string_view summary; // of the mod's heading
    std::string_view text;    // the whole program, its heading included
};

std::span<const LibraryMod> library(); // by group, then page, as they stand there
const LibraryMod* find_library_mod(std::string_view name);

} // namespace flexc::front
