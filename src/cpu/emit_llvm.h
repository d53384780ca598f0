// A mod as LLVM IR text. Needs no LLVM.
#pragma once

#include <string>

#include "passes/mod.h"

namespace flexc::cpu {

// Whether callers may give a map of the tiles that the mask shows, and full ones have functions of
// their own.
bool has_map(const passes::Mod& mod);

struct Emitted {
    std::string text;
    int scratch_arrays = 0; // Tile::scratch
};

Emitted emit_llvm(const passes::Mod& mod);

// Without the mathematical functions: what a reader wants to see.
std::string explain_llvm(const passes::Mod& mod);

} // namespace flexc::cpu
