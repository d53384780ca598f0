// Buffers for which kernels compute offsets of elements in 32 bits.
#pragma once

#include <cstddef>
#include <vector>

#include "passes/mod.h"

namespace flexc::plan {

// The argument words of the extents and strides of a buffer, or of its gradient.
struct BufferWords {
    std::vector<std::size_t> extents, strides;
};

std::vector<BufferWords> small_buffers(const passes::Mod& mod);

} // namespace flexc::plan
