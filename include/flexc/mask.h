// Which tiles of the score matrix a mask leaves empty, and which full: computed on the host, for
// people and for planning. Kernels find this out by themselves.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "flexc/kernel.h"
#include "flexc/options.h"
#include "flexc/result.h"

namespace flexc {

// One map per batch entry and head that the mask can tell apart: a single one if it does not read b
// or h.
struct MaskMap {
    std::int64_t batches = 1, heads = 1;
    std::int64_t query_tiles = 0, key_tiles = 0;
    // '#' full, '/' partial, '.' empty: [batches][heads][query_tiles][key_tiles]
    std::string tiles;

    std::string_view row(std::int64_t batch, std::int64_t head, std::int64_t query_tile) const {
        const std::int64_t first = (batch * heads + head) * query_tiles + query_tile;
        return std::string_view(tiles).substr(static_cast<std::size_t>(first * key_tiles),
                                              static_cast<std::size_t>(key_tiles));
    }
};

struct MaskTiles {
    std::int64_t queries = 128, keys = 128;
};

// Exact: a tile is full if all of its elements inside the lengths are visible. Buffers are host
// tensors; those that the mask does not read may be absent. CompileOptions::limits bounds time and
// memory, and CompileOptions::cancel ends the call.
Result<MaskMap> mask_map(std::string_view text, const CompileOptions& options, const Sizes& sizes,
                         std::span<const NamedTensor> buffers = {}, const MaskTiles& tile = {},
                         const PlanOptions& plan = {});

} // namespace flexc
