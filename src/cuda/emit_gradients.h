// The part of mod.cuh that adds up gradients of captured buffers, and reads that a backward kernel
// has once for many elements.
#pragma once

#include <string>

#include "cuda/expressions.h"
#include "passes/gradient_sum.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Of what a read names in an array of `base`; null outside its buffer.
std::string element_address(const Body& body, ir::NodeId read, passes::ArgumentSlot base,
                            passes::ArgumentSlot::Kind stride);

// Real values of an element that partials of terms share, and the score where indices use it: they
// come with its joint values.
std::vector<ir::NodeId> carried(const Layout& layout,
                                const std::vector<passes::ReadGradient>& gradients);

// For a generic backward: of those that it does not sum as those of tables.
std::string emit_gradients(const Layout& layout, const std::vector<passes::ReadGradient>& gradients,
                           passes::TileSums tile);

// For a backward of short sequences: of those that blocks sum over a head's.
std::string emit_shared_gradient(const Layout& layout,
                                 const std::vector<passes::ReadGradient>& gradients);

// For a warp-specialized backward: how each read's gradient is summed, and where the sum goes.
// come_from_elements: some do, not from tiles of dS.
std::string emit_read_gradients(const Layout& layout, const plan::KernelConfig& config,
                                const std::vector<passes::ReadGradient>& gradients,
                                bool come_from_elements);

// Those that the kernel adds.
std::vector<passes::ReadGradient> gradients_of(const passes::Mod& mod,
                                               const plan::KernelConfig& config);

// For kernels of a warp-specialized backward that pass over rows: what d score_mod / d score is for
// a row where some partial has a factor, and each read's partial as a function of the score. The
// layout has these roots.
std::vector<ir::NodeId> row_gradient_roots(const passes::Mod& mod,
                                           const std::vector<passes::ReadGradient>& gradients);
std::string emit_row_gradients(const Layout& layout,
                               const std::vector<passes::ReadGradient>& gradients);

// Reads by a row, then those by a column of the 2-D key index, that a warp-specialized
// backward has from shared memory.
std::vector<ir::NodeId> staged_reads(const passes::Mod& mod, const plan::KernelConfig& config);
std::string emit_key_index_2d(const Layout& layout, const plan::KernelConfig& config,
                              const std::vector<passes::ReadGradient>& gradients);
// Values by distance, and what sums over diagonals are multiplied with, each at an element.
std::string emit_distance_values(const Layout& layout, const plan::KernelConfig& config);
std::string emit_distance_factors(const Layout& layout,
                                  const std::vector<passes::ReadGradient>& gradients,
                                  passes::TileSums tile);
// Of gradients by differences of digits.
std::string emit_grid_gradients(const Layout& layout, const plan::KernelConfig& config);

} // namespace flexc::cuda
