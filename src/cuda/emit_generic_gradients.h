// The part of mod.cuh by which a generic backward adds gradients of captured buffers: element by
// element, or what its threads sum in registers for a head or along a line of a tile.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "passes/gradient_sum.h"

namespace flexc::cuda {

// Returns real values of an element that the partials of a sum's terms share, and the score if
// their indices use it. The function that computes the joint values passes them on.
std::vector<ir::NodeId> carried(const SymbolTable& symbols,
                                const std::vector<passes::ReadGradient>& gradients);

// All but those that it sums as tables or over the batch.
std::string emit_generic_gradients(const SymbolTable& symbols,
                                   const std::vector<passes::ReadGradient>& gradients,
                                   passes::TileSums tile);

// Gradients that a backward of short sequences sums over all sequences of a head.
std::string emit_shared_gradient(const SymbolTable& symbols,
                                 const std::vector<passes::ReadGradient>& gradients,
                                 passes::TileSums tile);

} // namespace flexc::cuda
