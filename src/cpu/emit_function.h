// Whole functions over a tile: the loops around a mod's values.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "passes/hidden_scores.h"
#include "passes/mod.h"

namespace flexc::cpu {

struct FunctionText {
    std::string text;
    int scratch_arrays = 0;
};

struct FunctionRequest {
    std::string_view name;
    bool masked = true;     // evaluate the mask; else every element of the tile is visible
    int first_metadata = 0; // of kMetadataPerFunction numbers that are free
};
inline constexpr int kMetadataPerFunction = 26;

FunctionText emit_forward(const passes::Mod& mod, const FunctionRequest& request);
FunctionText emit_backward(const passes::Mod& mod, const FunctionRequest& request);
FunctionText emit_band(const passes::Mod& mod, const FunctionRequest& request);

// What the mask shows of a tile, and what a score of -inf hides of that, without any score.
// `hidden`: of mod; nothing where only the mask hides.
FunctionText emit_look(const passes::Mod& mod, const std::optional<passes::HiddenScores>& hidden,
                       const FunctionRequest& request);

// Tells from intervals of what queries and keys alone give that a mask hides a tile, or none of it:
// Tile::seen is what a look would find then, else 0. Of masks that has_intervals().
bool has_intervals(const passes::Mod& mod);
FunctionText emit_intervals(const passes::Mod& mod, const FunctionRequest& request);

} // namespace flexc::cpu
