// The part of mod.cuh that adds up gradients of captured buffers.
#pragma once

#include <string>

#include "cuda/expressions.h"

namespace flexc::cuda {

std::string emit_gradients(const Layout& layout,
                           const std::vector<passes::ReadGradient>& gradients);

// For Hopper's backward: how each read's gradient is summed, and where the sum goes. key_width: see
// passes::gradient_sum().
std::string emit_gradient_addresses(const Layout& layout,
                                    const std::vector<passes::ReadGradient>& gradients,
                                    int key_width);

} // namespace flexc::cuda
