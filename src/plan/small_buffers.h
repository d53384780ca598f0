// Buffers of which kernels compute an element's offset in 32 bits.
#pragma once

#include <cstddef>
#include <vector>

#include "passes/mod.h"

namespace flexc::plan {

// The argument words that say how far the elements of a buffer, or of its gradient, are apart.
struct BufferWords {
    std::vector<std::size_t> extents, strides;
};

std::vector<BufferWords> small_buffers(const passes::Mod& mod);

} // namespace flexc::plan
