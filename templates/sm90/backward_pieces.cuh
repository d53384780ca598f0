// Finished pieces of dq from shared memory to its accumulator, by a thread of the producer's
// warpgroup.
#pragma once

#include "sm90/backward_layout.cuh"
#include "sm90/dependence.cuh"
#include "sm90/tma.cuh"
#include "sm90/turn.cuh"

namespace sm90 {

// Groups of columns of dq that a warpgroup has in its piece.
__device__ inline int groups_of(int warpgroup) {
    if constexpr (kSlabs == 2) return kGroups;
    constexpr int kMost = kPieceColumns / 8;
    return max(min(kGroups - kMost * warpgroup, kMost), 0);
}

// A warpgroup's piece to its part of a tile of queries, which starts at `slab`.
__device__ inline void add_piece(float* slab, Shared shared, int warpgroup) {
    constexpr int kSlabFloats = kSlabRows * mod::kHeadDim;
    float* const to = slab + warpgroup * (kSlabs == 2 ? kSlabFloats : kPieceBytes / 4);
    if (groups_of(warpgroup) > 0)
        add_bytes(to, shared.base + at::kQueryGradient + warpgroup * kPieceBytes,
                  groups_of(warpgroup) * kGroupBytes);
    end_additions();
}

// By the thread that has added all of a block's pieces.
__device__ inline void report_additions(const AttentionArguments& attention, const KeyTile& keys) {
    if (attention.blocks_done != nullptr) pass_turn(attention.blocks_done + keys.head(attention));
}

__device__ inline void add_pieces(const AttentionArguments& attention,
                                  const mod::Arguments& arguments, Shared shared,
                                  const KeyTile& keys) {
    constexpr int kSlabFloats = kSlabRows * mod::kHeadDim;
    const long long rows = padded(attention.q_len);
    unsigned parity = 0;
    wait_for_kernel_ahead();
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        QueryTiles walk(attention, place, keys, tiles);
        float* slab = attention.dq_accumulator +
                      (place.b * attention.heads + place.h) * rows * mod::kHeadDim +
                      static_cast<long long>(walk.tile()) * (kSlabs * kSlabFloats);
#pragma unroll 1
        while (!walk.is_done()) {
#pragma unroll
            for (int i = 0; i < kConsumers; ++i) {
                shared.piece_full(i).wait(parity);
                add_piece(slab, shared, i);
            }
            wait_for_additions<1>();
            shared.piece_empty(0).arrive();
            wait_for_additions<0>();
            shared.piece_empty(1).arrive();
            const int tile = walk.tile();
            walk.advance();
            slab += static_cast<long long>(walk.tile() - tile) * (kSlabs * kSlabFloats);
            parity ^= 1;
        }
    });
    report_additions(attention, keys);
}

} // namespace sm90
