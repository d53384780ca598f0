// A thread of the producer warpgroup adds finished pieces of dq, which are in shared memory, to
// the accumulator in global memory.
#pragma once

#include "common/dependence.cuh"
#include "sm90/backward_heads.cuh"
#include "sm90/backward_key_tiles.cuh"
#include "sm90/backward_output.cuh"
#include "sm90/backward_query_tiles.cuh"
#include "sm90/semaphore.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// Stores or adds a piece to its part of a tile of queries, whose first row block is `row_block`.
__device__ inline void add_piece(float* row_block, Shared shared, int piece, bool stores) {
    constexpr int kRowBlockFloats = kRowBlock * mod::kHeadDim;
    float* const to = row_block + piece * (kRowBlocks == 2 ? kRowBlockFloats : kPieceBytes / 4);
    const unsigned from = shared.base + kLayout.query_gradient + piece * kPieceBytes;
    const int bytes = kPieceRowBlocks * groups_of(piece) * kGroupBytes;
    if (bytes > 0 && stores) store_bytes(to, from, bytes);
    if (bytes > 0 && !stores) add_bytes(to, from, bytes);
    end_additions();
}

// Adds the pieces of a tile of queries, each as soon as it is finished.
__device__ inline void add_tile(float* row_block, Shared shared, unsigned parity, bool stores) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
        shared.piece_full(piece).wait(parity);
        add_piece(row_block, shared, piece, stores);
    }
    if constexpr (kPieces == 2) {
        wait_for_additions<1>();
        shared.piece_empty(0).arrive();
    }
    wait_for_additions<0>();
    shared.piece_empty(kPieces - 1).arrive();
}

// The sums of a tile of queries: the first block to arrive stores its part, others wait until it
// has and add theirs. No deadlock: a block that has claimed a tile never waits for another tile.
// Addresses are computed where they are needed, because registers are short.
class TileSums {
  public:
    // row_block: the tile's first, counted over batch and heads. seen: what peek() gave.
    __device__ TileSums(const KernelArguments& attention, int row_block, int seen)
        : attention_(attention), row_block_(row_block),
          before_(seen == kRowBlockStored
                      ? seen
                      : take_row_block(attention.row_block_states + row_block)) {}

    // Reads a row block's state long before it is needed. Only kRowBlockStored can be trusted:
    // other states may be out of date. A negative row block stands for none.
    static __device__ int peek(const KernelArguments& attention, int row_block) {
        if (row_block < 0 || attention.row_block_states == nullptr) return kRowBlockStored;
        return load_relaxed(attention.row_block_states + row_block);
    }

    __device__ void add(Shared shared, unsigned parity) const {
        constexpr long long kRowBlockFloats = kRowBlock * mod::kHeadDim;
        const bool is_first = before_ == kRowBlockUntouched;
        if (before_ == kRowBlockTaken)
            wait_for_semaphore(attention_.row_block_states + row_block_, kRowBlockStored);
        if (before_ == kRowBlockStored) asm volatile("fence.proxy.async;" ::: "memory");
        add_tile(attention_.dq_accumulator + row_block_ * kRowBlockFloats, shared, parity,
                 is_first);
        if (!is_first) return;
#pragma unroll
        for (int i = 0; i < kRowBlocks; ++i)
            report_stored(attention_.row_block_states + row_block_ + i);
    }

  private:
    const KernelArguments& attention_;
    int row_block_, before_;
};

// The thread that has added all of a block's pieces calls this.
__device__ inline void report_additions(const KernelArguments& attention, const KeyTile& keys) {
    if (attention.blocks_done != nullptr)
        release_semaphore(attention.blocks_done + keys.head(attention));
}

__device__ inline void add_pieces(const KernelArguments& attention, const mod::Arguments& arguments,
                                  const BackwardTensorMaps& maps, Shared shared,
                                  const KeyTile& only) {
    unsigned parity = 0;
    wait_for_kernel_ahead();
    KeyTiles::visit_beside<false>(shared, only, [&](const KeyTile& keys, unsigned which) {
        visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
            QueryTiles walk(attention, place, keys, tiles);
            const PaddedRows rows(attention, keys.length(attention));
            const int before = static_cast<int>(rows.first_block(place));
            const auto next = [&] {
                return walk.is_done() ? -1 : before + walk.tile() * kRowBlocks;
            };
            int row_block = next(), seen = TileSums::peek(attention, row_block);
#pragma unroll 1
            for (; row_block >= 0; parity ^= 1) {
                const TileSums sums(attention, row_block, seen);
                walk.advance();
                row_block = next();
                seen = TileSums::peek(attention, row_block);
                sums.add(shared, parity);
            }
        });
        if constexpr (mod::kPersistent) store_gradients(attention, maps, shared, keys, which);
        report_additions(attention, keys);
    });
}

} // namespace sm90
