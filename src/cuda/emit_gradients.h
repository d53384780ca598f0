// The part of mod.cuh that adds up gradients of captured buffers, and reads that a backward kernel
// has once for many elements.
#pragma once

#include <string>

#include "cuda/config.h"
#include "cuda/expressions.h"

namespace flexc::cuda {

// Real values of an element that partials of terms share: they come with its joint values.
std::vector<ir::NodeId> carried(const Layout& layout,
                                const std::vector<passes::ReadGradient>& gradients);

std::string emit_gradients(const Layout& layout,
                           const std::vector<passes::ReadGradient>& gradients);

// For Hopper's backward: how each read's gradient is summed, and where the sum goes. key_width: see
// passes::gradient_sum().
std::string emit_gradient_addresses(const Layout& layout,
                                    const std::vector<passes::ReadGradient>& gradients,
                                    int key_width);

// Of Hopper's backward.
GridReads grid_reads(const passes::Mod& mod);
// Reads by a row, then those by a column of keys as a grid, that Hopper's backward has from shared
// memory.
std::vector<ir::NodeId> staged_reads(const passes::Mod& mod, const KernelConfig& config);
std::string emit_staged_reads(const Layout& layout, const KernelConfig& config);
// What each expanded read gives at a distance.
std::string emit_distance_values(const Layout& layout);

} // namespace flexc::cuda
