#include "cpu/backend/request_queries.h"

namespace flexc::cpu::requests {

Magnitude Queries::widen(const Block& block) const {
    const int dim = shape_.head_dim;
    Magnitude all;
    for (int i = 0; i < block.heads; ++i) {
        const bool is_last = i + 1 == block.heads;
        const std::int64_t row = std::int64_t{i} * block.queries;
        all &= load_rows(in_.q, shape_.dtype, rows_of(block, i), dim, block.q + row * dim,
                         is_last ? padded_rows(block) - row : block.queries);
    }
    return all;
}

Magnitude Queries::pack(Block& block, std::int64_t* offsets) const {
    block.has_tile_q = true;
    constexpr std::int64_t kBytes = 2;
    std::int64_t* offset = offsets;
    for (int i = 0; i < block.heads; ++i) {
        const Rows rows = rows_of(block, i);
        for (std::int64_t row = rows.first; row < rows.first + rows.count; ++row)
            *offset++ =
                (in_.q.stride_h * rows.h + in_.q.stride_s * row + in_.q.stride_b * rows.b) * kBytes;
    }
    return parts::pack_queries(shape_.dtype,
                               {static_cast<const char*>(in_.q.data), 0, offsets, block.rows()},
                               shape_.head_dim, padded_rows(block), block.tile_q);
}

} // namespace flexc::cpu::requests
