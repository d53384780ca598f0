// Kinds of pairs of a query and a key: what a program adds by integers that are stored for each
// pair is one number for a head and each kind. A kernel before the forward stores kinds, in one or
// two bytes each, once for all heads, in the order in which lanes of the forward read them.
#pragma once

#include "common/place.cuh"
#include "sm90/forward_key_blocks.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/fragment.cuh"

namespace sm90 {

#if defined(FLEXC_HAS_KEY_KINDS) || defined(FLEXC_TABULATES)

// Return the number of tiles of queries, and of keys.
__device__ inline int pair_rows(const AttentionArguments& attention) {
    return (attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile;
}
__device__ inline int pair_columns(const AttentionArguments& attention) {
    return (attention.kv_len + mod::kKeyTile - 1) / mod::kKeyTile;
}
// Returns the number of tiles of all batch entries that have kinds of their own.
__device__ inline int pair_tiles(const AttentionArguments& attention) {
    if (!kHasPairKinds) return 0;
    return (mod::KeyKinds::kPairsUseBatch ? attention.batch : 1) * pair_rows(attention) *
           pair_columns(attention);
}
// Returns the address of a tile's kinds. row, column: its numbers among tiles.
__device__ inline unsigned char* pair_tile(const KernelArguments& attention, int b, int row,
                                           int column) {
    const int rows = (mod::KeyKinds::kPairsUseBatch ? b * pair_rows(attention) : 0) + row;
    const long long tile = static_cast<long long>(rows) * pair_columns(attention) + column;
    return attention.pair_kinds + tile * kPairKinds.tile_bytes;
}

// Words for each row of a tile, and kinds of a word.
constexpr unsigned kPairWords = kPairKinds.row_chunks * PairKindsLayout::kChunk;
constexpr int kWordKinds = 4 / kPairKinds.kind_bytes;

// Where a row's word is in a tile, and the key of its i-th kind: lanes read chunks of neighbours
// among their columns.
__device__ inline unsigned pair_word_at(unsigned row, unsigned word) {
    const unsigned first = word / 4 * 4, chunk = first / PairKindsLayout::kChunk;
    const unsigned of_lane =
        32 * (row % 16 / 8 * kPairKinds.row_chunks + chunk) + row % 8 * 4 + word % 4;
    return row / 16 * kPairKinds.warp_bytes + of_lane * PairKindsLayout::kChunk +
           first % PairKindsLayout::kChunk;
}
__device__ inline int key_of_pair(unsigned word, int i) {
    return static_cast<int>(word % 4 * 2) + column_of(static_cast<int>(word / 4) * kWordKinds + i);
}

// Stores a thread's part of the kinds of a tile's pairs. Pairs past the end have those of others.
__device__ inline void store_pairs(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const HeadPlace& place,
                                   int first_row, int first_key, unsigned char* to, unsigned thread,
                                   unsigned threads) {
    // A thread keeps its keys and steps down the rows, with sixteen loads of an index at once.
    constexpr int kAtOnce = 16 / kWordKinds;
    const unsigned word = thread % kPairWords;
#pragma unroll kAtOnce
    for (unsigned row = thread / kPairWords; row < mod::kQueryTile; row += threads / kPairWords) {
        unsigned bytes = 0;
#pragma unroll
        for (int i = 0; i < kWordKinds; ++i) {
            const int kind =
                visit_element(attention, arguments, place,
                              min(first_row + static_cast<int>(row), attention.q_len - 1),
                              min(first_key + key_of_pair(word, i), attention.kv_len - 1),
                              [](const mod::At& at) { return mod::KeyKinds::kind(at); });
            bytes |= static_cast<unsigned>(kind < 0 ? mod::KeyKinds::kCount : kind)
                     << 32 / kWordKinds * i;
        }
        *reinterpret_cast<unsigned*>(to + pair_word_at(row, word)) = bytes;
    }
}

// Stores the kinds of one of pair_tiles(), unless it is hidden. Called by all threads of a block.
__device__ inline void tabulate_pairs(const KernelArguments& attention,
                                      const mod::Arguments& arguments, int tile) {
    static_assert(kTabulatedStep % kPairWords == 0);
    const int columns = pair_columns(attention), rows = pair_rows(attention);
    const int column = tile % columns, row = tile / columns % rows, b = tile / columns / rows;
    const int first_row = row * mod::kQueryTile;
    const HeadPlace place(attention, arguments, b * attention.heads);
    if constexpr (mod::KeyKinds::kHeadsSeeAlike) {
        const TileRange seen =
            KeyBlocks::of(attention, place, SequenceLength(attention, b), first_row,
                          min(first_row + mod::kQueryTile, attention.q_len));
        if (column < seen.begin || column >= seen.end) return;
    }
    store_pairs(attention, arguments, place, first_row, column * mod::kKeyTile,
                pair_tile(attention, b, row, column), threadIdx.x, kTabulatedStep);
}

#endif

} // namespace sm90
