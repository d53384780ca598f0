// Which tiles of the score matrix a kernel visits. Included by device and host code: plain C++,
// fixed layout.
//
// A block mask has a row for each tile that a block keeps on chip (a tile of queries, or of keys in
// a backward), and in it two bits for each tile that the block loops over. It is built for one
// kernel's tile sizes.
//
// For dense tensors there is a block mask for each b and h that the mask tells apart. For other
// layouts there is one for each such h, whose rows are the tiles of all requests: for ragged rows
// in the order of tile_of_request (sequence_length.cuh), otherwise request after request. Positions
// of looped-over tiles count from the request's first one.
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
    // For layouts other than dense, batch_stride is the distance in rows from one request to the
    // next, not counting the distance of their first rows in a packed tensor.
};

// Which requests a block mask serves: requests with few queries (see has_few_rows) have a kernel
// and a block mask of their own.
enum class RowsOf { all, many, few };

// Arguments of the kernels that build block masks.
struct BuiltBlockMask {
    BlockMask mask;
    double* query_facts; // [block masks][query_tiles][facts]: pairs, interval::Fact
    double* key_facts;
    int query_tile, key_tile;   // sizes
    int query_tiles, key_tiles; // counts; of layouts other than dense, of all requests
    int by_keys;                // rows are tiles of keys
    RowsOf rows_of;
};
struct BlockMaskArguments {
    static constexpr int kMost = 4; // of a forward, with few queries and with many; of a backward
    BuiltBlockMask masks[kMost];
    int masks_of_heads, masks_of_batches; // how many b and h that the mask tells apart
};
