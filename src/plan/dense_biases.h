// Dense biases and their gradients, of which a kernel copies tiles, or to which it adds tiles, row
// by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "passes/dense_bias.h"
#include "plan/kernel.h"

namespace flexc::plan {

// The argument words that locate a dense bias; its last dimension is that of keys.
struct CopiedBias {
    std::size_t data = 0;
    std::vector<std::size_t> extents, strides;
    std::vector<bool> by_query; // the dimensions whose index is the query's
    std::size_t element_bytes = 0;
};

// Returns the argument words of the buffer that `read`, a dense bias of the score mod, reads.
CopiedBias copied_bias_of(const passes::Mod& mod, ir::NodeId read);

// Returns the dense biases that a fused backward copies by tiles, and the gradients that it adds by
// tiles.
std::vector<CopiedBias> tiled_biases(const passes::Mod& mod, const KernelConfig& config);

// Gradients of buffers that the blocks of a fused backward store before other blocks add to them,
// so that the buffers need not be zeroed first. `lines` are the gradients of which exactly one
// block stores each element, one line for each head and query (or key).
struct StoredGradients {
    struct Lines {
        std::uint32_t buffer;
        bool by_key;
    };
    std::vector<std::uint32_t> buffers;
    passes::BiasSharing sharing;
    std::vector<Lines> lines = {};

    bool holds(std::uint32_t buffer) const;
};
StoredGradients stored_gradients(const passes::Mod& mod, const KernelConfig& config);

} // namespace flexc::plan
