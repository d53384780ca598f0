// The part of mod.cuh that adds up gradients of captured buffers.
#pragma once

#include <string>

#include "cuda/expressions.h"

namespace flexc::cuda {

// Real values of an element that partials of terms share: they come with its joint values.
std::vector<ir::NodeId> carried(const Layout& layout,
                                const std::vector<passes::ReadGradient>& gradients);

std::string emit_gradients(const Layout& layout,
                           const std::vector<passes::ReadGradient>& gradients);

// For Hopper's backward: how each read's gradient is summed, and where the sum goes.
std::string emit_gradient_addresses(const Layout& layout,
                                    const std::vector<passes::ReadGradient>& gradients);

} // namespace flexc::cuda
