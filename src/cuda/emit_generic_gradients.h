// The part of mod.cuh by which a generic backward adds gradients of captured buffers: element by
// element, or what its threads sum in registers for a head or along a line of a tile.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "passes/gradient_sum.h"

namespace flexc::cuda {

// Returns the values of an element that joint() passes on to the functions of gradients: real ones
// that all terms of a sum() share, and the score if an index uses it. terms: those of the gradients
// that the kernel sums over its tiles.
std::vector<ir::NodeId> carried(const SymbolTable& symbols,
                                const std::vector<passes::ReadGradient>& terms,
                                const std::vector<passes::ReadGradient>& gradients);

// Emits the functions for the gradients that the kernel does not sum as tables, over the batch or
// by term. given: carried().
std::string emit_generic_gradients(const SymbolTable& symbols,
                                   const std::vector<passes::ReadGradient>& gradients,
                                   const std::vector<ir::NodeId>& given, passes::TileSums tile);

// Emits the gradients that a backward of short sequences sums over all sequences of a head.
std::string emit_shared_gradient(const SymbolTable& symbols,
                                 const std::vector<passes::ReadGradient>& gradients,
                                 passes::TileSums tile);

} // namespace flexc::cuda
