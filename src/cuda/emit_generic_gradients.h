// The part of mod.cuh by which a generic backward adds gradients of captured buffers: element by
// element, or what its threads sum in registers for a head or along a line of a tile.
#pragma once

#include <string>
#include <vector>

#include "cuda/expressions.h"
#include "passes/gradient_sum.h"

namespace flexc::cuda {

// Returns real values of an element that gradients of a sum's terms share, and the score if an
// index uses it. The function that computes the joint values passes them on. terms: of these
// gradients, those that the kernel sums over its tiles.
std::vector<ir::NodeId> carried(const SymbolTable& symbols,
                                const std::vector<passes::ReadGradient>& terms,
                                const std::vector<passes::ReadGradient>& gradients);

// All but those that it sums as tables or over the batch, and terms. given: what the joint values
// carry.
std::string emit_generic_gradients(const SymbolTable& symbols,
                                   const std::vector<passes::ReadGradient>& gradients,
                                   const std::vector<ir::NodeId>& given, passes::TileSums tile);

// Gradients that a backward of short sequences sums over all sequences of a head.
std::string emit_shared_gradient(const SymbolTable& symbols,
                                 const std::vector<passes::ReadGradient>& gradients,
                                 passes::TileSums tile);

} // namespace flexc::cuda
