// Matrices of a program whose tiles a kernel copies, or adds to, row by row.
#pragma once

#include <cstddef>
#include <vector>

#include "cuda/config.h"
#include "passes/mod.h"
#include "runtime/executable.h"

namespace flexc::runtime {

// The argument words that say where a matrix is; its last dimension is that of keys.
struct CopiedMatrix {
    std::size_t data = 0;
    std::vector<std::size_t> strides;
    std::size_t element_bytes = 0;
};

// Those of Hopper's fused backward.
std::vector<CopiedMatrix> copied_matrices(const passes::Mod& mod, const cuda::KernelConfig& config);

// Whether every row of every tile starts and ends at 16 aligned bytes, without gaps between keys.
bool have_aligned_rows(const std::vector<CopiedMatrix>& matrices, const Call& call);

} // namespace flexc::runtime
