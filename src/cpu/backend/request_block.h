// The rows of one product in forwards of requests, and the scratch memory of a thread.
#pragma once

#include <array>
#include <cstdint>

#include "cpu/backend/part_tiles.h"
#include "cpu/backend/skinny_products.h"
#include "cpu/backend/tensors.h"
#include "cpu/backend/tiles.h"
#include "cpu/tile.h"
#include "cpu/work.h"

namespace flexc::cpu::requests {

inline constexpr std::int64_t kKeyTile = 256;
static_assert(kKeyTile <= kMaxColumns && kKeyTile % kColumnUnit == 0);
static_assert(parts::kTileUnit % kColumnUnit == 0 && kKeyTile % parts::kTileUnit == 0 &&
              kBlockRows % parts::kTileUnit == 0 && kBlockRows <= kKeyTile);
static_assert(kFewRows <= kSkinnyRows && kFewRowGroups * kFewRows <= kBlockRows);

// What products of a few rows multiply: queries as floats, as bf16 numbers, or as those of tiles of
// the matrix unit, which has products with values too.
enum class FewRowsBy : std::uint8_t { floats, bf16, matrix_unit };

// Some queries of consecutive heads, head by head.
struct Block {
    float *q, *scores, *output, *row_max, *row_sum, *row_correction;
    float* new_output;               // of a few rows, until it is known to be finite
    int head, heads, query, queries; // the first ones and their numbers
    std::uint16_t* packed_q;         // unless few_rows_by floats
    std::uint16_t* rounded_weights;  // of a few rows, in bf16: as scores
    std::uint16_t* tile_q;           // parts for tiles of many rows, if has_tile_q
    FewRowsBy few_rows_by;
    bool is_moderate, is_finite, started, has_tile_q;
    std::array<bool, kBlockRows> head_started;

    std::int64_t rows() const { return std::int64_t{heads} * queries; }
};

// The scratch memory of a lane (a thread of the pool).
struct Scratch {
    float *keys, *values, *lse;
    std::int64_t *key_rows, *offsets;
    std::uint64_t* emitted;
    // f32 of a tile of keys or values that has no parts.
    float* wide;
    std::array<Block, kMostBlocks> blocks;
};

// Returns where the rows of one of the block's heads are in tensors of queries.
inline Rows queries_of(const Block& block, const Sequence& sequence, int request, int head) {
    return {request, block.head + head, sequence.q_row + block.query, block.queries};
}

// Returns the arguments of emitted functions for one of the block's heads, without keys.
inline Tile tile_of(const Block& block, const Sequence& sequence, int request, int head,
                    const AttentionArguments& in, std::uint64_t* emitted) {
    const std::int64_t row = std::int64_t{head} * block.queries;
    Tile tile{};
    tile.scores = block.scores + row * kKeyTile;
    tile.stride = kKeyTile;
    tile.row_max = block.row_max + row;
    tile.row_sum = block.row_sum + row;
    tile.row_correction = block.row_correction + row;
    tile.scratch = emitted;
    tile.b = request;
    tile.h = block.head + head;
    tile.h_kv = tile.h / (in.heads / in.kv_heads);
    tile.q_begin = block.query + sequence.q_start;
    tile.rows = block.queries;
    tile.scale = in.scale;
    tile.q_len = sequence.q_len;
    tile.kv_len = sequence.kv_len;
    tile.q_row = sequence.q_row + block.query;
    return tile;
}

} // namespace flexc::cpu::requests
