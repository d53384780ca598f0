// What emitted code and the loops around it share: one tile of query rows and kv columns.
// Plain and of fixed layout; emit_function.cpp knows the fields by their index.
#pragma once

#include <cstddef>
#include <cstdint>

namespace flexc::cpu {

// Every field is one 8-byte word, so that field i stands at byte 8 i.
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
    void* scratch; // scratch_arrays of the module, each kMaxColumns 8-byte words, and a word more
    std::int64_t b, h, h_kv;
    std::int64_t q_begin, kv_begin; // as the program sees them: offsets are added
    std::int64_t rows, columns;
    double scale;
    std::int64_t band_low, band_high; // out of the band function: low <= kv - q <= high
    // Likewise, where the band's ends are clamped; left alone where they are not. In the order of
    // analysis::Clamps, which says what they are.
    std::int64_t first_least, first_most, last_least, last_most, least_query, most_query;
    std::int64_t is_moderate; // look: whether all scores are up to passes::kModerateScore; 0 or 1
    std::int64_t seen;        // look: bits of Seen, added to those that are there
    // Of layouts that are not dense: lengths of request b, the first query's row, and the first
    // key's, or of keys not in order all of them.
    std::int64_t q_len, kv_len, q_row, kv_row;
    const std::int64_t* kv_rows;
};
// Scores of q and k below the one, with a scale below the other, are up to passes::kModerateScore.
inline constexpr float kModerateInput = 0x1p20f;
inline constexpr double kModerateScale = 0x1p10;

// What a look finds in a tile.
enum Seen : int {
    kSeenShown = 1, // an element that neither the mask hides nor a score of -inf, as far as known
    kSeenMasked = 2 // one that the mask hides; without a mask always
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

// No tile is wider than this.
inline constexpr std::int64_t kMaxColumns = 512;
inline constexpr std::int64_t kArrayBytes = 8 * kMaxColumns; // of %scratch, an element a column

// Every emitted function: the launch arguments in argument_slots order, and a tile.
using TileFunction = void (*)(const std::uint64_t* arguments, Tile* tile);

} // namespace flexc::cpu
