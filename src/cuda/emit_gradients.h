// The part of mod.cuh that adds up gradients of captured buffers, and reads that a backward kernel
// has once for many elements.
#pragma once

#include <string>

#include "cuda/config.h"
#include "cuda/expressions.h"
#include "passes/gradient_sum.h"

namespace flexc::cuda {

// Real values of an element that partials of terms share: they come with its joint values.
std::vector<ir::NodeId> carried(const Layout& layout,
                                const std::vector<passes::ReadGradient>& gradients);

std::string emit_gradients(const Layout& layout,
                           const std::vector<passes::ReadGradient>& gradients);

// For Hopper's backward: how each read's gradient is summed, and where the sum goes.
std::string emit_gradient_addresses(const Layout& layout,
                                    const std::vector<passes::ReadGradient>& gradients,
                                    passes::TileSums tile);

// Those that the kernel adds.
std::vector<passes::ReadGradient> gradients_of(const passes::Mod& mod, const KernelConfig& config);

// For kernels of Hopper's backward that pass over rows: what d score_mod / d score is for a row
// where some partial has a factor, and each read's partial as a function of the score. The layout
// has these roots.
std::vector<ir::NodeId> row_gradient_roots(const passes::Mod& mod,
                                           const std::vector<passes::ReadGradient>& gradients);
std::string emit_row_gradients(const Layout& layout,
                               const std::vector<passes::ReadGradient>& gradients);

// Of Hopper's backward.
GridReads grid_reads(const passes::Mod& mod);
// Reads by a row, then those by a column of keys as a grid, that Hopper's backward has from shared
// memory.
std::vector<ir::NodeId> staged_reads(const passes::Mod& mod, const KernelConfig& config);
std::string emit_staged_reads(const Layout& layout, const KernelConfig& config);
// What each expanded read gives at a distance.
std::string emit_distance_values(const Layout& layout);

} // namespace flexc::cuda
