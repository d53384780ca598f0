// Rows and columns of a backward kernel's tile of scores, as a thread knows them.
#pragma once

#include "common/row_lse.cuh"
#include "sm80/backward_mma.cuh"
#include "sm80/surroundings.cuh"
#include "sm80/table_sums.cuh"
#include "sm80/workspace.cuh"

namespace sm80 {

using mod::Element;

constexpr int kThreads = 32 * mod::kWarps;
constexpr TileSizes backward_sizes() {
    TileSizes sizes = {mod::kQueryTile, mod::kKeyTile,  mod::kStages,
                       mod::kHeadDim,   mod::kHeadDimV, static_cast<int>(sizeof(Element))};
    sizes.table_sums = kTableSumSizes;
    sizes.warps = mod::kWarps;
    sizes.term_words = mod::TermSums::kWords;
    return sizes;
}
constexpr TileSizes kSizes = backward_sizes();

using KeyTile = Tile<Element, mod::kKeyTile, mod::kHeadDim>;
using ValueTile = Tile<Element, mod::kKeyTile, mod::kHeadDimV>;
using QueryTile = Tile<Element, mod::kQueryTile, mod::kHeadDim>;
using DOutTile = Tile<Element, mod::kQueryTile, mod::kHeadDimV>;
using PTile = Tile<Element, mod::kQueryTile, mod::kKeyTile>; // P, or dS

// dk and dv of a tile of keys, as all warps of a block hold them.
using KeyGradient = WarpResult<mod::kKeyTile, mod::kHeadDim, mod::kWarps>;
using ValueGradient = WarpResult<mod::kKeyTile, mod::kHeadDimV, mod::kWarps>;

// A tile of scores: its first positions, the shared memory where load_row_statistics puts lse and
// delta of its rows, the distance between the two, and whether the block mask says that nothing is
// hidden.
struct ScoreTile {
    int first_q, first_kv;
    unsigned row_statistics;
    int to_delta;
    bool is_full = false;
};

struct ScoreRow {
    mod::Row value;
    int q; // as the program sees it
    bool inside;
    // The reference and the log-sum-exp relative to it; lse and 0 where lse alone is exact enough:
    // see row_references.cuh and sink.cuh.
    float reference_score, lse_log2;
    float delta; // sum over d of d_out * o, less d_lse
};

struct ScoreColumn {
    mod::Column value;
    int kv; // as the program sees it
    bool inside;
};

// Starts copies of lse and delta of rows first_q + [0, kCount) to shared memory, lse first. Rows
// past the end become zeros.
template <int kCount>
__device__ inline void load_row_statistics(unsigned to, const KernelArguments& attention,
                                           const SequenceLength& length, int h, int first_q) {
    const Plane<float> lse = query_plane<float>(attention.lse, length, h);
    const float* const delta = delta_of_head(attention, length, h);
#pragma unroll 1
    for (int i = threadIdx.x; i < kCount; i += kThreads) {
        const int q = first_q + i;
        const bool inside = q < length.queries();
        copy_async<4>(to + 4 * i, lse.at(q, 0), inside);
        copy_async<4>(to + 4 * (kCount + i), delta + q, inside);
    }
}

__device__ inline ScoreRow read_row(const Surroundings& around, const ScoreTile& tile, int row) {
    const auto& [attention, arguments, place, length] = around;
    const int position = tile.first_q + row, q = length.q_idx(position);
    const float lse = load_shared_float(tile.row_statistics + 4 * row);
    // Nothing is visible in the row: an infinite lse makes every P zero.
    float reference_score = lse == negative_infinity() ? -lse : lse, lse_log2 = 0;
    if (mod::Sink::kExists || is_large_lse(lse)) {
        const RowStatistics statistics(attention, length, place.h);
        reference_score =
            statistics.of(position, kRowReference) * (mod::kHasScoreMod ? 1 : attention.scale);
        lse_log2 = statistics.of(position, kRowLseLog2);
    }
    return {mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q),
            q,
            position < length.queries(),
            reference_score,
            lse_log2,
            load_shared_float(tile.row_statistics + tile.to_delta + 4 * row)};
}

// kAll: it is not past the end.
template <bool kAll>
__device__ inline ScoreColumn read_column(const Surroundings& around, const ScoreTile& tile,
                                          int column) {
    const auto& [attention, arguments, place, length] = around;
    const int position = tile.first_kv + column;
    const int kv = kAll ? position + static_cast<int>(length.kv_offset()) : length.kv_idx(position);
    return {mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv),
            kv, kAll || position < length.keys()};
}

__device__ inline mod::At element_at(const Surroundings& around, const ScoreRow& row,
                                     const ScoreColumn& column) {
    const auto& [attention, arguments, place, length] = around;
    return {arguments, place.launch, place.head, row.value, column.value,
            place.b,   place.h,      place.h_kv, row.q,     column.kv};
}

} // namespace sm80
