// Matrices of a program whose tiles a kernel copies, or adds to, row by row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "cuda/config.h"
#include "cuda/tensor_maps.h"
#include "passes/matrix_read.h"
#include "runtime/executable.h"

namespace flexc::runtime {

// The argument words that say where a matrix is; its last dimension is that of keys.
struct CopiedMatrix {
    std::size_t data = 0;
    std::vector<std::size_t> extents, strides;
    std::vector<bool> by_query; // the dimensions whose index is the query's
    std::size_t element_bytes = 0;
};

// That of biases in Hopper's forward, where it copies one.
std::optional<CopiedMatrix> copied_biases(const passes::Mod& mod);

// Everything that the buffer holds as rows side by side, none of whose keys are in two of them.
// Empty where strides rule that out.
std::optional<cuda::MatrixLayout> rows_of(const CopiedMatrix& matrix, const Call& call);

// Those of Hopper's fused backward.
std::vector<CopiedMatrix> copied_matrices(const passes::Mod& mod, const cuda::KernelConfig& config);

// Whether every row of every tile starts and ends at 16 aligned bytes, without gaps between keys.
bool have_aligned_rows(const std::vector<CopiedMatrix>& matrices, const Call& call);

// Buffers whose gradients the blocks of Hopper's fused backward store before others add to them, so
// that nobody clears them.
struct StoredGradients {
    std::vector<std::uint32_t> buffers;
    passes::MatrixSharing sharing;

    bool holds(std::uint32_t buffer) const;
    // Whether there are any, and the call has all of their queries and keys.
    bool are_whole(const Call& call) const;
};
StoredGradients stored_gradients(const passes::Mod& mod, const cuda::KernelConfig& config);

} // namespace flexc::runtime
