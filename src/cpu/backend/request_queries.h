// Queries of one request, as left sides of products.
#pragma once

#include <cstdint>

#include "cpu/backend/attention.h"
#include "cpu/backend/request_block.h"

namespace flexc::cpu::requests {

class Queries {
  public:
    // launch: that of all requests. has_parts: products of many rows are those of bf16
    // parts.
    Queries(const Launch& launch, int request, bool has_parts)
        : shape_(*launch.shape), in_(*launch.arguments), sequence_(launch.sequences->of(request)),
          request_(request), has_parts_(has_parts) {}

    // The block's rows with padding.
    std::int64_t padded_rows(const Block& block) const {
        const std::int64_t rows = power_of_two(block.rows());
        return has_parts_ ? round_up(rows, parts::kTileUnit) : rows;
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
    bool has_parts_;
};

} // namespace flexc::cpu::requests
