// The part of mod.cuh that adds gradients of captured buffers, and the reads that a backward kernel
// evaluates once for many elements.
#pragma once

#include <initializer_list>
#include <string>

#include "cuda/expressions.h"
#include "passes/gradient_sum.h"
#include "plan/kernel.h"

namespace flexc::cuda {

// Expression for the address of the element that a read names, in the array `base`; null if it is
// outside the buffer.
std::string element_address(const Body& body, ir::NodeId read, passes::ArgumentSlot base,
                            passes::ArgumentSlot::Kind stride);

// Returns real values of an element that the partials of a sum's terms share, and the score if
// their indices use it. The function that computes the joint values passes them on.
std::vector<ir::NodeId> carried(const Layout& layout,
                                const std::vector<passes::ReadGradient>& gradients);

// Gradients of a generic backward, except those that it sums as tables or over the batch.
std::string emit_gradients(const Layout& layout, const std::vector<passes::ReadGradient>& gradients,
                           passes::TileSums tile);

// Gradients that a backward of short sequences sums over all sequences of a head.
std::string emit_shared_gradient(const Layout& layout,
                                 const std::vector<passes::ReadGradient>& gradients,
                                 passes::TileSums tile);

// How a warp-specialized backward sums the gradient of each read, and where it adds the sum.
// come_from_elements: some are added element by element rather than from tiles of dS.
std::string emit_read_gradients(const Layout& layout, const plan::KernelConfig& config,
                                const std::vector<passes::ReadGradient>& gradients,
                                bool come_from_elements);

// Returns those of the mod's gradients that this kernel adds, except those of sums' terms that a
// fold kernel adds: terms_by_distance(). emit_term_gradients(): their addresses and factors.
std::vector<passes::ReadGradient> gradients_of(const passes::Mod& mod,
                                               const plan::KernelConfig& config);

// Returns these factors of each gradient, and the indices of its read.
std::vector<ir::NodeId>
gradient_roots(const passes::Mod& mod, const std::vector<passes::ReadGradient>& gradients,
               std::initializer_list<ir::NodeId passes::ReadGradient::*> factors);

std::vector<passes::ReadGradient> terms_by_distance(const passes::Mod& mod);
std::string emit_term_gradients(const Layout& layout,
                                const std::vector<passes::ReadGradient>& terms);

// Returns the gradients of sums' terms that this kernel sums over its tiles, and what enters these
// terms and those of sums, which elements carry (`given`); and emits what the kernel asks of the
// gradients.
std::vector<passes::ReadGradient> terms_of_kernel(const passes::Mod& mod,
                                                  const plan::KernelConfig& config);
std::vector<ir::NodeId> carried_by_terms(const Layout& layout,
                                         const std::vector<passes::ReadGradient>& gradients,
                                         const std::vector<ir::NodeId>& sums);
std::string emit_term_sums(const Layout& layout, const plan::KernelConfig& config,
                           const std::vector<passes::ReadGradient>& terms,
                           const std::vector<ir::NodeId>& given);

// Functions for kernels of a warp-specialized backward that pass over rows: the partial of each
// read whose gradient is added once a row, as a function of the score.
std::string emit_row_gradients(const Layout& layout,
                               const std::vector<passes::ReadGradient>& gradients);

// Reads that depend on the row, then reads that depend on the column, of the 2-D key index; a
// warp-specialized backward keeps their values in shared memory.
std::vector<ir::NodeId> staged_reads(const passes::Mod& mod, const plan::KernelConfig& config);
std::string emit_key_index_2d(const Layout& layout, const plan::KernelConfig& config,
                              const std::vector<passes::ReadGradient>& gradients);
// Values by distance, and the factors of sums over diagonals, each evaluated at an element.
std::string emit_distance_values(const Layout& layout, const plan::KernelConfig& config);
std::string emit_distance_factors(const Layout& layout,
                                  const std::vector<passes::ReadGradient>& gradients,
                                  passes::TileSums tile);
// Gradients that are sums over parts of diagonals: their indices are differences of digits.
std::string emit_grid_gradients(const Layout& layout, const plan::KernelConfig& config);

} // namespace flexc::cuda
