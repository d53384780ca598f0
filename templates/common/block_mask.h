// Which tiles of the score matrix a kernel visits. Included by device and host code: plain C++,
// fixed layout.
//
// A block mask has a row for each tile that a block keeps on chip: of queries, or in a backward
// pass of keys; and in it two bits for each tile that passes by. It is made for one kernel's tile
// sizes.
//
// Of dense tensors, each b and h that the mask tells apart has a block mask. Of other layouts each
// such h has one, whose rows are the tiles of all requests: those of ragged rows where
// tile_of_request (sequence_length.cuh) has them, of others request after request. Tiles that pass
// by count from the request's first position.
#pragma once

struct TileRow {
    int count;      // of tiles that hold something visible
    int begin, end; // before the first of them, after the last
};

// Tiles 32 i ... 32 i + 31 of a row, the first in bit 0.
struct TileWord {
    unsigned visible, full; // something is visible; nothing is hidden
};

struct BlockMask {
    TileRow* rows;   // [block masks][row_count]
    TileWord* words; // [block masks][row_count][word_count]
    int* order;      // [block masks][row_count]: rows, those with most tiles first
    int row_count, word_count;
    int batch_stride,
        head_stride; // from one block mask to the next; 0 where the mask does not tell them apart
    // Of layouts other than dense, batch_stride is from one request's rows to those of the next,
    // beside what their first rows in a packed tensor are apart.
};

// The requests whose tiles are visited: those with few queries have a kernel of their own, see
// has_few_rows.
enum class RowsOf { all, many, few };

// What the kernels that build block masks are told.
struct PlannedBlockMask {
    BlockMask mask;
    double* query_facts; // [block masks][query_tiles][facts]: pairs, interval::Fact
    double* key_facts;
    int query_tile, key_tile;   // sizes
    int query_tiles, key_tiles; // counts; of layouts other than dense, of all requests
    int by_keys;                // rows are tiles of keys
    RowsOf rows_of;
};
struct PlanArguments {
    static constexpr int kMost = 4; // of a forward, with few queries and with many; of a backward
    PlannedBlockMask masks[kMost];
    int masks_of_heads, masks_of_batches; // how many b and h that the mask tells apart
};
