// Dense biases and their gradients, whose tiles a kernel copies, or adds to, row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "passes/dense_bias.h"
#include "plan/kernel.h"

namespace flexc::plan {

// The argument words that say where a dense bias is; its last dimension is that of keys.
struct CopiedBias {
    std::size_t data = 0;
    std::vector<std::size_t> extents, strides;
    std::vector<bool> by_query; // the dimensions whose index is the query's
    std::size_t element_bytes = 0;
};

// Of a read of the score mod.
CopiedBias copied_bias_of(const passes::Mod& mod, ir::NodeId read);

// Those that a fused backward copies and adds to.
std::vector<CopiedBias> tiled_biases(const passes::Mod& mod, const KernelConfig& config);

// Buffers whose gradients the blocks of a fused backward store before others add to them, so that
// nobody clears them; and of which one block stores each element, a line of them for each head and
// query, or key.
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
