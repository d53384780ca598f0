// Queries of one request, as left sides of products.
#pragma once

#include <cstdint>

#include "cpu/backend/attention.h"
#include "cpu/backend/request_block.h"

namespace flexc::cpu::requests {

class Queries {
  public:
    // launch: that of all requests. uses_tiles: products of many rows are those of the matrix
    // unit's tiles.
    Queries(const Launch& launch, int request, bool uses_tiles)
        : shape_(*launch.shape), in_(*launch.arguments), sequence_(launch.sequences->of(request)),
          request_(request), uses_tiles_(uses_tiles) {}

    // The block's rows with padding.
    std::int64_t padded_rows(const Block& block) const {
        const std::int64_t rows = power_of_two(block.rows());
        return uses_tiles_ ? round_up(rows, amx::kTileUnit) : rows;
    }
    // Fill block.q in f32, or block.tile_q for tiles, and return the magnitude of the queries.
    Magnitude widen(const Block& block) const;
    Magnitude pack(Block& block, std::int64_t* offsets) const;

  private:
    Rows rows_of(const Block& block, int head) const {
        return queries_of(block, sequence_, request_, head);
    }

    const KernelShape& shape_;
    const AttentionArguments& in_;
    const Sequence& sequence_;
    int request_;
    bool uses_tiles_;
};

} // namespace flexc::cpu::requests
