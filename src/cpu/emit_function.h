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

// Emits the function that evaluates what the mask shows of a tile, and what a score of -inf hides
// of that, without computing scores. hidden: from the mod; nothing if only the mask hides.
FunctionText emit_mask(const passes::Mod& mod, const std::optional<passes::HiddenScores>& hidden,
                       const FunctionRequest& request);

// Emits the function that decides, by interval arithmetic on what queries and keys alone give,
// whether a mask hides all of a tile or none of it. It sets Tile::seen as the function of
// emit_mask() does, or to 0 if undecided. Only for masks with has_intervals().
bool has_intervals(const passes::Mod& mod);
FunctionText emit_intervals(const passes::Mod& mod, const FunctionRequest& request);

} // namespace flexc::cpu
