// A mod as LLVM IR text. Needs no LLVM.
#pragma once

#include <string>

#include "passes/mod.h"

namespace flexc::cpu {

// Whether callers may give a block mask.
bool has_block_mask(const passes::Mod& mod);

struct Emitted {
    std::string text;
    int scratch_arrays = 0;    // Tile::scratch
    bool has_mask_function = false; // there is kMaskFunction
    bool hides_scores = false;      // the mask function finds scores of -inf too
};

Emitted emit_llvm(const passes::Mod& mod);

// The text without the mathematical functions, for reading.
std::string generated_llvm(const passes::Mod& mod);

} // namespace flexc::cpu
