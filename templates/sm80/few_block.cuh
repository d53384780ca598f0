// A block of forward_few.cu: rows of the queries of some heads that share keys, over a part of the
// keys that they see.
#pragma once

#include "sm80/few_results.cuh"
#include "sm80/few_tiles.cuh"

extern __shared__ __align__(128) unsigned char shared_memory[];

namespace sm80 {

constexpr int kBlockWarps = few_warps(kSizes);
constexpr int kMostTiles = most_few_tiles(kSizes); // of rows
constexpr int kMostRows = kMostTiles * mod::kQueryTile;

__device__ inline int warp_index() { return static_cast<int>(threadIdx.y); }

// The rows that a block has. Blocks with the same keys are neighbours, then those of other heads of
// keys, which often are neighbours in caches.
struct BlockPlace {
    int group, part, h_kv, first_row;

    __device__ BlockPlace(const AttentionArguments& attention, int block)
        : group(flexc_quotient(attention.heads, attention.kv_heads)) {
        const int most_rows = few_rows(attention.q_len, group);
        const int blocks = kMostRows < kMostFewRows ? (most_rows + kMostRows - 1) / kMostRows
                                                    : 1; // with the same keys
        const int head = flexc_quotient(block, blocks);
        part = flexc_quotient(head, attention.kv_heads);
        h_kv = head - part * attention.kv_heads;
        first_row = (block - head * blocks) * kMostRows;
    }
};

// The work of a block.
struct FewBlock {
    const KernelArguments& attention;
    const mod::Arguments& arguments;
    const SequenceLength length;
    const PartOfRequest at;
    const int group, h_kv, first_row;
    const int row_count; // of the request
};

// Loads so many rows of the block's queries, with all warps. Rows that do not exist become zeros.
// place_of(row, column) returns where an element goes.
template <typename PlaceOf>
__device__ inline void load_queries(const FewBlock& block, int rows, PlaceOf place_of) {
    const auto& [attention, arguments, length, at, group, h_kv, first_row, row_count] = block;
    const int thread = 32 * warp_index() + lane_index();
    constexpr int kBytes = kCopyBytes<Element, mod::kHeadDim>;
    const Plane<Element> first = query_plane<Element>(attention.q, length, h_kv * group);
    const long long head_bytes =
        attention.q.stride_h * static_cast<long long>(sizeof(Element)) * (group > 1);
    if (kBytes != 0 && first.aligned_to(kBytes) && head_bytes % (kBytes ? kBytes : 1) == 0) {
        constexpr int kColumns = kBytes ? kBytes / static_cast<int>(sizeof(Element)) : 1;
        constexpr int kPieces = mod::kHeadDim / kColumns;
#pragma unroll 1
        for (int i = thread; i < rows * kPieces; i += 32 * kBlockWarps) {
            const int row = i / kPieces, column = i % kPieces * kColumns;
            const bool exists = first_row + row < row_count;
            const PackedRow own(exists ? first_row + row : 0, h_kv, group);
            copy_async<kBytes ? kBytes : 16>(
                place_of(row, column),
                query_plane<Element>(attention.q, length, own.h).at(own.query, column), exists);
        }
        return;
    }
#pragma unroll 1
    for (int i = thread; i < rows * mod::kHeadDim; i += 32 * kBlockWarps) {
        const int row = i / mod::kHeadDim, column = i % mod::kHeadDim;
        Element value = flexc_from_float<Element>(0);
        if (first_row + row < row_count) {
            const PackedRow own(first_row + row, h_kv, group);
            value = *query_plane<Element>(attention.q, length, own.h).at(own.query, column);
        }
        store_shared(place_of(row, column), value);
    }
}

// Joins the results of each row, and stores them as the row's output or as that of the block's part
// of keys. Each warp has some of the rows. row_of(row, i) returns where the i-th of a row's results
// begins. The block's place is computed again, as keeping it through the loop takes registers.
template <typename RowOf>
__device__ inline void store_rows(const FewBlock& block, int results, RowOf row_of) {
    const BlockPlace again(block.attention, block_index_again());
    const PartialResults parts(block.attention);
    const float to_log2 = (scales_early(block.attention) ? 1 : block.attention.scale) * kLog2E;
    const int count = min(kMostRows, block.row_count - again.first_row);
    for (int own = warp_index(); own < count; own += kBlockWarps) {
        WholeRow whole;
        whole.add<kBlockWarps>(results, to_log2, [&](int i) { return RowOfWarp(row_of(own, i)); });
        const int row = again.first_row + own;
        if (block.at.count == 1) {
            store_whole_row(block.attention, block.arguments, block.length,
                            PackedRow(row, again.h_kv, again.group), whole);
            continue;
        }
        if (lane_index() == 0) {
            parts.maximum(again.part, again.h_kv, row) = whole.maximum;
            parts.sum(again.part, again.h_kv, row) = whole.sum;
        }
        whole.visit([&](int column, float value) {
            parts.output(again.part, again.h_kv, row)[column] = value;
        });
    }
}

// Returns how many tiles of 16 rows a block has, if so many rows are left.
__device__ inline int few_row_tiles(int rows) {
    return min((rows + mod::kQueryTile - 1) / mod::kQueryTile, kMostTiles);
}

// Calls attend(block, tiles) if the block has work. tiles: how many tiles of 16 rows it has.
template <typename Attend>
__device__ inline void with_few_block(const KernelArguments& attention,
                                      const mod::Arguments& arguments, Attend attend) {
    const BlockPlace place(attention, static_cast<int>(blockIdx.x));
    const PartOfRequest at = part_of_request(attention, place.part);
    if (mod::Mask::kHasBlockMask) wait_for_kernel_ahead(); // which builds it
    if (at.count == 0) return;
    const SequenceLength length(attention, at.request);
    const int row_count = length.queries() * place.group;
    if (kMostRows < kMostFewRows && place.first_row >= row_count) return; // else it has rows
    const FewBlock block{attention,   arguments,  length,          at,
                         place.group, place.h_kv, place.first_row, row_count};
    attend(block, few_row_tiles(row_count - place.first_row));
}

} // namespace sm80
