// The functions that block_mask.cu calls to decide which tiles of the score matrix a mask leaves.
#pragma once

#include <string>

#include "cuda/expressions.h"

namespace flexc::cuda {

// Intervals that are kept of each tile of queries, and of each tile of keys.
struct TileFacts {
    int of_queries = 0, of_keys = 0;
};
TileFacts tile_facts(const passes::Mod& mod);

// `symbols` has the mask as its only root.
std::string emit_tile_functions(const SymbolTable& symbols);

} // namespace flexc::cuda
