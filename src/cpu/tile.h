// The tile of query rows and kv columns that emitted code and the loops around it share. Its layout
// is fixed: emit_function.cpp accesses fields by their index.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexc::cpu {

// Every field is one 8-byte word, so that field i is at byte 8 i.
struct Tile {
    float* scores;    // rows x stride: q·k in; forward: probabilities out, backward: the same
    float* gradients; // backward, rows x stride: d out · v in, gradient of q·k out
    std::int64_t stride;
    float* row_max;        // forward: running maximum of the modified scores, natural units
    float* row_sum;        // forward: running sum of exp(score - maximum)
    float* row_correction; // forward, out: factor for what was accumulated before this tile
    // Backward, per row: a weight is 2^((score - reference) log2(e) - log2_sum), at most about 1.
    const float* reference;
    const float* log2_sum;
    const float* delta; // backward, per row: rowsum(d_out * o) - d_lse
    void* scratch; // scratch_arrays of the module, each kMaxColumns 8-byte words, and one more word
    std::int64_t b, h, h_kv;
    std::int64_t q_begin,
        kv_begin; // q_idx and kv_idx of the first row and column, offsets included
    std::int64_t rows, columns;
    double scale;
    std::int64_t band_low, band_high; // set by the band function: low <= kv - q <= high
    // Set by the band function too if the band's ends are clamped, otherwise unchanged. See
    // analysis::Clamps, which has the same order.
    std::int64_t first_least, first_most, last_least, last_most, least_query, most_query;
    std::int64_t is_moderate; // mask function: 1 if no score exceeds passes::kModerateScore, else 0
    std::int64_t seen;        // mask function: bits of Seen; new ones are added
    // Only for layouts other than dense: the lengths of request b, the row of the first query, and
    // that of the first key; kv_rows: the row of every key, for keys that are not in order.
    std::int64_t q_len, kv_len, q_row, kv_row;
    const std::int64_t* kv_rows;
};
// If elements of q and k are below kModerateInput and the scale is below kModerateScale, no score
// exceeds passes::kModerateScore.
inline constexpr float kModerateInput = 0x1p20f;
inline constexpr double kModerateScale = 0x1p10;

// What evaluating the mask of a tile finds.
enum Seen : int {
    kSeenShown = 1, // some element may be visible: no mask, and no known score of -inf, hides it
    kSeenMasked = 2 // some element is hidden by the mask; always set without a mask
};

enum TileField : int {
    kTileScores,
    kTileGradients,
    kTileStride,
    kTileRowMax,
    kTileRowSum,
    kTileRowCorrection,
    kTileReference,
    kTileLog2Sum,
    kTileDelta,
    kTileScratch,
    kTileB,
    kTileH,
    kTileHKv,
    kTileQBegin,
    kTileKvBegin,
    kTileRows,
    kTileColumns,
    kTileScale,
    kTileBandLow,
    kTileBandHigh,
    kTileFirstClamp, // first_least, and five more
    kTileIsModerate = kTileFirstClamp + 6,
    kTileSeen,
    kTileQLen,
    kTileKvLen,
    kTileQRow,
    kTileKvRow,
    kTileKvRows,
    kTileFields
};
static_assert(sizeof(Tile) == std::size_t{8} * kTileFields);

// The largest number of columns of a tile.
inline constexpr std::int64_t kMaxColumns = 512;
inline constexpr std::int64_t kArrayBytes =
    8 * kMaxColumns; // bytes of an array of %scratch, a word for each column

// The type of every emitted function. arguments: the launch arguments in argument_slots order.
using TileFunction = void (*)(const std::uint64_t* arguments, Tile* tile);

} // namespace flexc::cpu
