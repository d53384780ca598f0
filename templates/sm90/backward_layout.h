// Shared memory of the fused backward kernel: sizes and places from the numbers of a configuration.
// Included by device and host code, so that a plan asks for the bytes that the kernel uses.
#pragma once

#include "common/arguments.h"
#include "common/host_device.h"
#include "sm90/shifted_layout.h"

namespace sm90 {

constexpr int kConsumers = 2;     // consumer warpgroups
constexpr int kPanelColumns = 64; // columns of 16 bits: 128 bytes, the width of the swizzle
constexpr int kRowBytes = 2 * kPanelColumns;
constexpr int kRingStages = 2;                 // of queries and d_out
constexpr int kRowBlock = 64;                  // queries of a row block of dq's accumulator
constexpr int kGroupBytes = kRowBlock * 8 * 4; // eight columns of a row block
constexpr int kPadding = 16; // bytes between rows of a dense bias, which keep lanes in other banks
constexpr int kTermKeys = 16; // of a warp, which keeps sums of terms for each
// Slots of sums by query, which hold a float for each query from each warp: enough that a warp
// never overwrites what another still reads, see gradients/query.cuh.
constexpr int kQuerySumSlots = 4;
// Producer warps that have nothing else to do: they sum over the tile of dS, or add it to a dense
// bias's gradient.
constexpr int kSumWarps = 2;
// Panels begin at multiples of the swizzle's period; what else TMA moves is aligned to 16 bytes.
constexpr int kPanelAlignment = 1024;

// Sums over diagonals of a grid: copies of them in a warp, and distances in each copy. A distance
// has 2^places sums, one for each way in which digits borrow.
constexpr int kGridCopies = 4, kGridDistances = 128;
// Queries, and keys, that are summed at once; digits begin at multiples of this.
constexpr int kGridStep = 8;
// Words in which a warp multiplies kinds at most: ones of eight times sixteen keys, and sums of
// four times eight kinds of queries.
constexpr int kMostKindWords = (8 + 4) * 32 * 4;
FLEXC_SHARED constexpr int grid_words(int places) { return kGridCopies * kGridDistances << places; }

FLEXC_SHARED constexpr int panels(int columns) {
    return (columns + kPanelColumns - 1) / kPanelColumns;
}
FLEXC_SHARED constexpr int round_up(int x, int step) { return (x + step - 1) / step * step; }
FLEXC_SHARED constexpr int round_up_16(int x) { return round_up(x, 16); }

// What the layout depends on. Zero stands for a feature that the program does not have.
struct BackwardShape {
    int head_dim, head_dim_v;
    int query_tile;
    int d_scores_stages;
    int bias_stages, bias_bytes;          // of the bias that is copied: tiles, bytes of an element
    bool bias_is_shifted, bias_is_by_key; // its rows, or columns, begin anywhere in memory
    bool adds_bias_gradients, biases_are_narrow;
    bool sums_tile; // the producer's warps sum dS over distances, or over a 2-D key index
    int row_bytes;  // what the program computes for a query, if that is staged
    // Reads by row and column of a 2-D key index that are staged beside queries.
    int key_width, row_reads, column_reads, column_bytes;
    int column_sums; // floats of a query that products leave for columns of the 2-D key index
    int table_words; // for sums of tables or grids, and of kinds beside them, of each such warp
    int entry_words; // of the block, for copies of all entries of tables that consumers sum
    // Elements of gradients of tables, or by distance, have tiles of their own, which are summed
    // instead of dS.
    bool has_weighted_tile;
    bool are_alone;  // gradients of buffers: dq, dk and dv are those of another kernel
    int query_sums;  // gradients by query that the block's warps put together
    int term_words;  // for sums of the terms of sums, of each warp of the consumers
    bool has_block_mask, is_persistent;
    bool is_ragged; // queries and keys are ragged

    // A warpgroup has 64 keys of its own. Where dk and dv are too wide for its registers, both have
    // the same 64 keys, and each has half of the columns of dk and dv, and computes the scores of
    // half of the queries.
    FLEXC_SHARED constexpr bool shares_keys() const {
        constexpr int kWidest = 128;
        return !are_alone && (head_dim > kWidest || head_dim_v > kWidest);
    }
    FLEXC_SHARED constexpr int key_tile() const { return shares_keys() ? 64 : 64 * kConsumers; }
    // Returns the most that row_bytes may be; more would leave too little memory for the rest.
    FLEXC_SHARED constexpr int most_row_bytes() const { return shares_keys() ? 8 : 16; }

    // Whether a dense bias's gradient is added from the tile of dS.
    FLEXC_SHARED constexpr bool adds_tiles() const {
        return adds_bias_gradients && biases_are_narrow;
    }
    // Whether a dense bias's gradient is added from shared memory of its own, 64 queries at a time.
    FLEXC_SHARED constexpr bool adds_parts() const {
        return adds_bias_gradients && !biases_are_narrow;
    }
    // Whether warps of the producer warpgroup read dS, or the tile beside it.
    FLEXC_SHARED constexpr bool reads_tile() const { return sums_tile || adds_tiles(); }
    // Whether dS is in shared memory, for products or such warps.
    FLEXC_SHARED constexpr bool stores_d_scores() const {
        return !are_alone || (reads_tile() && !has_weighted_tile);
    }
    // Whether warpgroups alternate at dq, which they do if only MMAs read dS: each computes all of
    // every second tile's dq while the other computes scores, which keeps the tensor cores busy.
    // Otherwise each computes a part of every tile's dq.
    FLEXC_SHARED constexpr bool alternates_dq() const {
        return !shares_keys() && !adds_bias_gradients && !reads_tile() && !are_alone &&
               entry_words == 0 && d_scores_stages == 2;
    }
    // Whether the kernel can be persistent: not with warps that sum dS or stage reads of a 2-D key
    // index, since these work for one tile of keys only.
    FLEXC_SHARED constexpr bool can_be_persistent() const {
        return alternates_dq() && row_reads + column_reads == 0;
    }

    FLEXC_SHARED constexpr int query_panel() const { return query_tile * kRowBytes; }
    FLEXC_SHARED constexpr int key_panel() const { return key_tile() * kRowBytes; }
    FLEXC_SHARED constexpr int d_scores_bytes() const { return panels(key_tile()) * query_panel(); }

    // dq in its accumulator: row blocks of 64 queries, in each of them groups of eight columns in
    // the order in which a warpgroup holds them. A piece is all of a tile where warpgroups
    // alternate, else up to eight groups: of a warpgroup's own row block where there are two in a
    // tile of queries, else of its own columns.
    FLEXC_SHARED constexpr int row_blocks() const { return query_tile / kRowBlock; }
    FLEXC_SHARED constexpr int groups() const { return head_dim / 8; }
    FLEXC_SHARED constexpr int pieces() const { return alternates_dq() ? 1 : kConsumers; }
    FLEXC_SHARED constexpr int piece_row_blocks() const {
        return alternates_dq() ? row_blocks() : 1;
    }
    FLEXC_SHARED constexpr int piece_columns() const {
        if (alternates_dq()) return round_up_16(head_dim);
        if (panels(head_dim) == 1 && row_blocks() == 1) return 32;
        return row_blocks() == 2 || adds_bias_gradients || head_dim > 96 ? 64 : 48;
    }
    FLEXC_SHARED constexpr int groups_of(int piece) const {
        if (row_blocks() == 2) return groups();
        const int most = piece_columns() / 8, rest = groups() - most * piece;
        return rest < 0 ? 0 : rest < most ? rest : most;
    }
    FLEXC_SHARED constexpr int piece_bytes() const { // of the first piece, the largest
        return alternates_dq() ? row_blocks() * groups() * kGroupBytes
                               : piece_columns() / 8 * kGroupBytes;
    }
    // Bytes for one piece of each warpgroup, the first of them rounded up to a whole product; a
    // piece that is all of a tile takes no more.
    FLEXC_SHARED constexpr int pieces_bytes() const {
        constexpr int kColumnBytes = kRowBlock * 4;
        if (row_blocks() == 2) return kColumnBytes * (64 + head_dim);
        return kColumnBytes * (head_dim < 32 ? 32 : head_dim);
    }

    // Rows are padded so that lanes which access eight rows at once find them in different banks.
    FLEXC_SHARED constexpr int bias_row_bytes() const { return key_tile() * bias_bytes + kPadding; }
    FLEXC_SHARED constexpr int bias_tile_bytes() const {
        if (!bias_is_shifted) return query_tile * bias_row_bytes();
        return bias_is_by_key ? shifted_tile_layout(key_tile(), query_tile, bias_bytes).bytes
                              : shifted_tile_layout(query_tile, key_tile(), bias_bytes).bytes;
    }
    FLEXC_SHARED constexpr int gradient_row_bytes() const { return 64 * 4 + kPadding; }
    FLEXC_SHARED constexpr int part_rows() const { return adds_tiles() ? query_tile : kRowBlock; }
    FLEXC_SHARED constexpr int part_bytes() const { // for each warpgroup's keys
        return adds_parts() ? part_rows() * gradient_row_bytes() : 0;
    }
    // Bytes for dq's pieces, or for parts of a dense bias's gradient. With the latter, and where
    // warpgroups share keys, dq is added to its accumulator from registers.
    FLEXC_SHARED constexpr int gradient_bytes() const {
        if (shares_keys()) return 0;
        if (adds_bias_gradients) return kConsumers * part_bytes();
        return are_alone ? 0 : pieces_bytes();
    }

    // Bytes of the entries, and of what two tiles of each warp add at most.
    FLEXC_SHARED constexpr int entry_bytes() const {
        return entry_words == 0 ? 0 : round_up_16(4 * entry_words) + 2 * 4 * kConsumers * 4;
    }

    FLEXC_SHARED constexpr int statistic_bytes() const { return 4 * kRowStatistics * query_tile; }
    FLEXC_SHARED constexpr int staged_row_bytes() const { return round_up(row_bytes, 8); }

    // Rows of the 2-D key index that a tile of keys may touch.
    FLEXC_SHARED constexpr int index_2d_rows() const {
        return key_tile() / key_width + (key_tile() % key_width == 0 ? 0 : 2);
    }
    FLEXC_SHARED constexpr int row_read_bytes() const { return index_2d_rows() * query_tile * 4; }
    // Bytes from one query's columns to the next's: padded so that eight queries are in different
    // banks.
    FLEXC_SHARED constexpr int column_pitch() const {
        return round_up_16(key_width * column_bytes) + 16;
    }
    FLEXC_SHARED constexpr int column_read_bytes() const { return query_tile * column_pitch(); }
    FLEXC_SHARED constexpr int index_2d_bytes() const { // of a stage
        return (row_reads > 0 ? row_reads * row_read_bytes() : 0) +
               column_reads * column_read_bytes();
    }
    FLEXC_SHARED constexpr int query_sums_bytes() const { // of a gradient, in a slot
        return 4 * kConsumers * query_tile * 4;
    }

    // Bytes in which a slot of a persistent kernel says which tile of keys it has, and the lengths
    // of its request.
    static constexpr int kTileBytes = 16, kLengthBytes = 32;
    FLEXC_SHARED constexpr int key_tile_bytes() const {
        return kTileBytes + (is_ragged ? kLengthBytes : 0);
    }

    // Number of barriers but for those of persistent kernels, which come after the others.
    FLEXC_SHARED constexpr int own_barriers() const {
        return 14 + 2 * bias_stages + (d_scores_stages == 1) + (query_sums > 0);
    }
    FLEXC_SHARED constexpr int barriers() const { return own_barriers() + (is_persistent ? 8 : 0); }
};

// Byte offsets in shared memory.
struct BackwardLayout {
    int keys, values;
    int queries, d_out; // two stages of each
    int d_scores;
    int weighted;       // two stages of what tables or diagonals are summed from, if not dS
    int p;              // two stages, where keys are shared: else P stay in registers
    int query_gradient; // pieces of it, or parts of a bias's gradient
    int biases;
    int statistics, rows; // two stages of each
    int barriers;
    int mask_tiles; // two stages of a word, where there is a block mask
    int index_2d;   // two stages
    int sums;       // of columns of the 2-D key index: a row for each query
    int query_sums;
    int tables;    // sums of tables, of each warp that sums or of the block
    int terms;     // sums of terms, of each warp of the consumers
    int key_tiles; // one for each slot of keys of a persistent kernel
    int end;
    // In a persistent kernel, the second slot of keys, for the next tile, if there is room.
    int spare_keys;
};

FLEXC_SHARED constexpr BackwardLayout backward_layout(const BackwardShape& shape) {
    BackwardLayout at{};
    const int key_panels = panels(shape.head_dim), value_panels = panels(shape.head_dim_v);
    at.values = at.keys + key_panels * shape.key_panel();
    at.queries = at.values + value_panels * shape.key_panel();
    at.d_out = at.queries + kRingStages * key_panels * shape.query_panel();
    at.d_scores = at.d_out + kRingStages * value_panels * shape.query_panel();
    at.weighted = at.d_scores +
                  (shape.stores_d_scores() ? shape.d_scores_stages : 0) * shape.d_scores_bytes();
    at.p = at.weighted + (shape.has_weighted_tile ? kRingStages * shape.d_scores_bytes() : 0);
    at.query_gradient =
        at.p + (shape.shares_keys() ? shape.d_scores_stages * shape.d_scores_bytes() : 0);
    at.biases = at.query_gradient + shape.gradient_bytes();
    at.statistics = at.biases + shape.bias_stages * shape.bias_tile_bytes();
    at.rows = at.statistics + kRingStages * shape.statistic_bytes();
    at.barriers = at.rows + kRingStages * shape.query_tile * shape.staged_row_bytes();
    at.mask_tiles = at.barriers + shape.barriers() * 8;
    at.index_2d = round_up_16(at.mask_tiles + (shape.has_block_mask ? 16 : 0));
    at.sums = at.index_2d + kRingStages * shape.index_2d_bytes();
    at.query_sums = at.sums + shape.query_tile * shape.column_sums * 4;
    at.tables =
        round_up_16(at.query_sums + shape.query_sums * kQuerySumSlots * shape.query_sums_bytes());
    at.terms = at.tables + kSumWarps * 4 * shape.table_words + shape.entry_bytes();
    at.key_tiles = round_up_16(at.terms + 4 * kConsumers * 4 * shape.term_words);
    at.end = at.key_tiles + (shape.is_persistent ? 2 * shape.key_tile_bytes() : 0);
    at.spare_keys = round_up(at.end, kPanelAlignment);
    return at;
}

} // namespace sm90
