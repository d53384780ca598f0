// Shared memory of the generic kernels, in bytes from its start. Included by device and host code.
#pragma once

#include "common/host_device.h"

namespace sm80 {

FLEXC_SHARED constexpr int round_up(int x, int to) { return (x + to - 1) / to * to; }
FLEXC_SHARED constexpr int larger(int x, int y) { return x > y ? x : y; }

// Returns the bytes of a tile's row. It is padded to 16 elements, the width of a matrix
// instruction, and to an odd number of 16-byte units, so that eight consecutive rows start in
// different banks and no swizzle is needed.
FLEXC_SHARED constexpr int tile_row_bytes(int columns, int element_bytes) {
    return round_up(round_up(columns, 16) * element_bytes, 32) + 16;
}

// Shared memory of a block for sums of tables' gradients. Each table has so many words for a tile's
// sums in whole numbers (twice that if elements are floats), and floats for those of the tiles
// before. Warps tell each other the largest dS of a tile, and which places they meet. has_weighted:
// elements have a tile of what they add to some tables instead of dS, too.
struct TableSumSizes {
    int tables = 0, words = 0, warps = 0;
    bool has_weighted = false;

    FLEXC_SHARED constexpr int floats(int element_bytes) const {
        return (element_bytes == 4 ? 2 : 1) * 4 * words;
    }
    FLEXC_SHARED constexpr int table_bytes(int element_bytes) const {
        return floats(element_bytes) + 4 * words;
    }
    FLEXC_SHARED constexpr int warp_bytes() const {
        return 4 * (1 + 2 * tables + (has_weighted ? 1 : 0));
    }
    FLEXC_SHARED constexpr int bytes(int element_bytes) const {
        return tables == 0 ? 0 : tables * table_bytes(element_bytes) + warps * warp_bytes();
    }
};

struct TileSizes {
    int query_tile, key_tile, stages;
    int head_dim, head_dim_v, element_bytes;
    int key_element_bytes = element_bytes; // of keys and values; in a forward it may be 1
    bool has_scales = false;               // staged with each key and value
    TableSumSizes table_sums = {};         // of a backward by keys
    int warps = 0, term_words = 0;         // likewise: for sums of terms, of each warp

    FLEXC_SHARED constexpr int query_row() const { return tile_row_bytes(head_dim, element_bytes); }
    FLEXC_SHARED constexpr int key_row() const {
        return tile_row_bytes(head_dim, key_element_bytes);
    }
    FLEXC_SHARED constexpr int value_row() const {
        return tile_row_bytes(head_dim_v, key_element_bytes);
    }
};

// Offsets in a forward's shared memory: queries, then stages of keys and values. The output is
// staged in the same memory, as floats.
struct ForwardLayout {
    int stages, stage_bytes; // offset of the first stage, and the distance to the next
    int values, scales;      // in a stage, behind keys; scales: of keys, then of values
    int bytes;
};
FLEXC_SHARED constexpr ForwardLayout forward_layout(const TileSizes& sizes) {
    ForwardLayout layout{};
    layout.stages = sizes.query_tile * sizes.query_row();
    layout.values = sizes.key_tile * sizes.key_row();
    layout.scales = layout.values + sizes.key_tile * sizes.value_row();
    layout.stage_bytes = layout.scales + (sizes.has_scales ? 2 * 4 * sizes.key_tile : 0);
    const int used = layout.stages + sizes.stages * layout.stage_bytes;
    layout.bytes = larger(used, sizes.query_tile * tile_row_bytes(sizes.head_dim_v, 4));
    return layout;
}

// Returns the bytes of a float for each element, which forward_short.cu and backward_short.cu have
// behind the tiles.
FLEXC_SHARED constexpr int tile_float_bytes(int query_tile, int key_tile) {
    return 4 * query_tile * key_tile;
}

// Shared memory of forward_few.cu, whose warps have stages of their own: tiles of queries, as many
// as a call needs and a block may have, then the stages of each warp, which its results overwrite.
// A block has as many warps as leave room for three blocks with one tile of queries on a
// multiprocessor of Hopper.
constexpr int kMostFewWarps = 4;
FLEXC_SHARED constexpr int few_warp_bytes(const TileSizes& sizes) {
    return larger(sizes.stages * forward_layout(sizes).stage_bytes,
                  sizes.query_tile * tile_row_bytes(sizes.head_dim_v, 4));
}
FLEXC_SHARED constexpr int few_warps(const TileSizes& sizes) {
    constexpr int kBlockBytes = 76 * 1024;
    const int most =
        sizes.head_dim_v > 160 ? 2 : kMostFewWarps; // as registers for the output allow
    const int warps = (kBlockBytes - forward_layout(sizes).stages) / few_warp_bytes(sizes);
    return warps < 1 ? 1 : warps > most ? most : warps;
}
// Returns the most tiles of queries of a block: a power of two that divides its warps.
FLEXC_SHARED constexpr int most_few_tiles(const TileSizes& sizes) {
    const int warps = few_warps(sizes);
    return warps % 4 == 0 ? 4 : warps % 2 == 0 ? 2 : 1;
}
FLEXC_SHARED constexpr int few_bytes(const TileSizes& sizes, int query_tiles) {
    return query_tiles * forward_layout(sizes).stages + few_warps(sizes) * few_warp_bytes(sizes);
}
// Sizes of flexc_merge_parts, whose shared memory has a row for each warp. Each head of keys of a
// request has blocks for its rows; blocks beside are divided among heads, for rows with many parts.
// There are fewer where the host knows the parts, but a few rows are spread over as many as start
// at once.
constexpr int kMergingWarps = 8, kMergingBlocksBeside = 512, kMergingBlocksAtOnce = 264;
constexpr int kPartsAtOnce = 8; // of a row, whose loads a warp has under way at once
// Returns how many warps of a block join a row of so many parts: a power of two. It depends on
// nothing else, so that a row has the same bits in every batch. One warp loads twice before two
// wait for each other.
FLEXC_SHARED constexpr int warps_of_row(int parts) {
    if (parts <= 2 * kPartsAtOnce) return 1;
    int warps = 4;
    while (warps < kMergingWarps && parts > warps * kPartsAtOnce)
        warps *= 2;
    return warps;
}
FLEXC_SHARED constexpr int merging_bytes(int head_dim_v) {
    return kMergingWarps * tile_row_bytes(head_dim_v, 4);
}

// Bytes of lse and delta, which a backward kernel loads for each query.
constexpr int kRowStatisticBytes = 2 * 4;

// Keys of a warp's rectangle of scores at most, of which it keeps sums of terms.
constexpr int kTermKeys = 32;

// Offsets in the shared memory of backward_key.cu: keys, values, P, dS, then stages of queries,
// d_out, lse and delta, then sums of tables, what elements add to tables instead of dS, and sums of
// terms. dk and dv are staged in the same memory, as floats.
struct BackwardKeyLayout {
    int values, p, d_scores;
    int stages, stage_bytes;
    int d_out, row_statistics; // in a stage, behind queries
    int table_sums, weighted, terms;
    int bytes;
};
FLEXC_SHARED constexpr BackwardKeyLayout backward_key_layout(const TileSizes& sizes) {
    const int p_bytes = sizes.query_tile * tile_row_bytes(sizes.key_tile, sizes.element_bytes);
    BackwardKeyLayout layout{};
    layout.values = sizes.key_tile * sizes.key_row();
    layout.p = layout.values + sizes.key_tile * sizes.value_row();
    layout.d_scores = layout.p + p_bytes;
    layout.stages = layout.d_scores + p_bytes;
    layout.d_out = sizes.query_tile * sizes.key_row();
    layout.row_statistics = layout.d_out + sizes.query_tile * sizes.value_row();
    layout.stage_bytes = layout.row_statistics + sizes.query_tile * kRowStatisticBytes;
    layout.table_sums = layout.stages + sizes.stages * layout.stage_bytes;
    int used = layout.table_sums + sizes.table_sums.bytes(sizes.element_bytes);
    layout.weighted = round_up(used, 16);
    if (sizes.table_sums.has_weighted) used = layout.weighted + p_bytes;
    layout.terms = used;
    if (sizes.term_words > 0) used = layout.terms + 4 * sizes.warps * sizes.term_words;
    const int widest = larger(sizes.head_dim, sizes.head_dim_v);
    layout.bytes = larger(used, sizes.key_tile * tile_row_bytes(widest, 4));
    return layout;
}

// Bytes of what backward_short.cu keeps for each query: three floats, which one load reads.
constexpr int kSharedStatisticBytes = 4 * 4;

// Offsets in the shared memory of backward_short.cu: keys, values and queries, whose gradients
// replace them; then d_out, statistics of queries, and dS, a row for each key, which replaces o.
// There is room for one of the gradients as floats instead of dS.
struct BackwardShortLayout {
    int values, queries, d_out, row_statistics, d_scores;
    int bytes;
};
FLEXC_SHARED constexpr BackwardShortLayout backward_short_layout(const TileSizes& sizes) {
    BackwardShortLayout layout{};
    layout.values = sizes.key_tile * sizes.key_row();
    layout.queries = layout.values + sizes.key_tile * sizes.value_row();
    layout.d_out = layout.queries + sizes.query_tile * sizes.query_row();
    layout.row_statistics = layout.d_out + sizes.query_tile * sizes.value_row();
    layout.d_scores = layout.row_statistics + sizes.query_tile * kSharedStatisticBytes;
    const int d_scores = sizes.key_tile * tile_row_bytes(sizes.query_tile, sizes.element_bytes);
    const int output = sizes.query_tile * sizes.value_row();
    const int floats = sizes.key_tile * tile_row_bytes(larger(sizes.head_dim, sizes.head_dim_v), 4);
    layout.bytes = layout.d_scores + larger(larger(d_scores, output), floats);
    return layout;
}

// Offsets in the shared memory of backward_query.cu: queries, d_out, lse and delta, then stages of
// keys and values. dq is staged in the same memory, as floats.
struct BackwardQueryLayout {
    int d_out, row_statistics;
    int stages, stage_bytes;
    int values; // in a stage, behind keys
    int bytes;
};
FLEXC_SHARED constexpr BackwardQueryLayout backward_query_layout(const TileSizes& sizes) {
    BackwardQueryLayout layout{};
    layout.d_out = sizes.query_tile * sizes.key_row();
    layout.row_statistics = layout.d_out + sizes.query_tile * sizes.value_row();
    layout.stages = layout.row_statistics + sizes.query_tile * kRowStatisticBytes;
    layout.values = sizes.key_tile * sizes.key_row();
    layout.stage_bytes = layout.values + sizes.key_tile * sizes.value_row();
    const int used = layout.stages + sizes.stages * layout.stage_bytes;
    layout.bytes = larger(used, sizes.query_tile * tile_row_bytes(sizes.head_dim, 4));
    return layout;
}

} // namespace sm80
