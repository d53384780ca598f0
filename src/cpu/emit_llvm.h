// A mod as LLVM IR text. Needs no LLVM.
#pragma once

#include <string>

#include "passes/mod.h"

namespace flexc::cpu {

struct Emitted {
    std::string text;
    int scratch_arrays = 0; // Tile::scratch
};

// Functions of the module, all of type TileFunction. The `full` ones leave the mask out: for tiles
// that the band proves visible.
inline constexpr char kForwardFunction[] = "flexc_forward";
inline constexpr char kForwardFullFunction[] = "flexc_forward_full";
inline constexpr char kBackwardFunction[] = "flexc_backward";
inline constexpr char kBackwardFullFunction[] = "flexc_backward_full";
inline constexpr char kBandFunction[] = "flexc_band";

Emitted emit_llvm(const passes::Mod& mod);

// Without the mathematical functions: what a reader wants to see.
std::string explain_llvm(const passes::Mod& mod);

} // namespace flexc::cpu
