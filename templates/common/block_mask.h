// Which tiles of the score matrix a kernel visits. Included by device and host code: plain C++,
// fixed layout.
//
// A block mask has a row for each tile that a block keeps on chip: of queries, or in a backward
// pass of keys; and in it two bits for each tile that passes by. It is made for one kernel's tile
// sizes.
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
};

// What the kernels that build block masks are told.
struct PlannedBlockMask {
    BlockMask mask;
    double* query_facts; // [block masks][query_tiles][facts]: pairs, interval::Fact
    double* key_facts;
    int query_tile, key_tile;   // sizes
    int query_tiles, key_tiles; // counts
    int by_keys;                // rows are tiles of keys
};
struct PlanArguments {
    static constexpr int kMost = 3; // forward, and two of a backward
    PlannedBlockMask masks[kMost];
    int masks_of_heads, masks_of_batches; // how many b and h that the mask tells apart
};
