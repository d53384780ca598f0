// A warpgroup's piece of dq: the product dS K, and how it gets to the thread that adds it to
// memory.
#pragma once

#include "sm90/backward_layout.cuh"
#include "sm90/tma.cuh"
#include "sm90/warpgroup.cuh"
#include "sm90/wgmma_fixed.cuh"

namespace sm90 {

using RowBlockGradient = float[kPieceColumns / 2];
using QueryGradient = RowBlockGradient[kPieceRowBlocks];

// Issues the MMAs of a piece of dS K over the tile's keys, or over the first kCount of them.
template <int kCount = mod::kKeyTile, int kStep = 0>
__device__ inline void issue_query_gradient(RowBlockGradient& dq, unsigned d_scores,
                                            unsigned keys) {
    using P = FixedWgmma<mod::Element, kPieceColumns>;
    static_assert(kCount % 64 == 0);
    constexpr int kFromA = kLayout.d_scores + kStep / 4 * kQueryPanel;
    constexpr int kFromB = kLayout.keys + kStep * 16 * kRowBytes;
    if constexpr (kStep == 0)
        P::template start_four<kFromA, kFromB, true>(dq, d_scores, keys);
    else
        P::template add_four<kFromA, kFromB, true>(dq, d_scores, keys);
    if constexpr (16 * (kStep + 4) < kCount)
        issue_query_gradient<kCount, kStep + 4>(dq, d_scores, keys);
}

struct QueryPiece {
    const Shared shared;
    const int warpgroup, warp, lane; // among the consumers, in the warpgroup, in the warp
    const unsigned keys = 0;         // words from the first slot of keys

    // Issues the product of a piece of dq over one warpgroup's keys. which: that warpgroup.
    __device__ void multiply_keys_of(QueryGradient& dq, int stage, int which) const {
        const unsigned word = operand_word(shared.base, kQueryPanel);
        issue_query_gradient<64>(dq[0], word + d_scores_offset(stage) + which * (kQueryPanel >> 4),
                                 key_columns() + which * (64 * kRowBytes >> 4));
    }

    // Issues the product of a piece of dq over all keys.
    __device__ void multiply_keys(QueryGradient& dq, int stage) const {
        constexpr unsigned kRowBlockStep = kRowBlock * kRowBytes >> 4;
        const unsigned first = operand_word(shared.base, kQueryPanel) + d_scores_offset(stage) +
                               (kRowBlocks > kPieceRowBlocks ? warpgroup * kRowBlockStep : 0);
#pragma unroll
        for (int row_block = 0; row_block < kPieceRowBlocks; ++row_block)
            issue_query_gradient(dq[row_block], first + row_block * kRowBlockStep, key_columns());
    }

    __device__ static void wait_for_dq(QueryGradient& dq) {
#pragma unroll
        for (int row_block = 0; row_block < kPieceRowBlocks; ++row_block)
            pin(dq[row_block]);
    }

    // Writes a piece of dq to shared memory for the thread that adds it to the accumulator.
    __device__ void hand_over(const QueryGradient& dq, unsigned step) const {
        const int piece = kAlternatesDq ? 0 : warpgroup;
        const unsigned to =
            shared.base + kLayout.query_gradient + piece * kPieceBytes + warp * 512 + lane * 16;
        shared.piece_empty(piece).wait((step & 1) ^ 1);
#pragma unroll
        for (int row_block = 0; row_block < kPieceRowBlocks; ++row_block)
#pragma unroll
            for (int i = 0; i < kPieceColumns / 8; ++i)
                if (i < groups_of(piece))
                    store_shared(to + (row_block * kGroups + i) * kGroupBytes, dq[row_block][4 * i],
                                 dq[row_block][4 * i + 1], dq[row_block][4 * i + 2],
                                 dq[row_block][4 * i + 3]);
        publish_shared();
        shared.piece_full(piece).arrive();
    }

    // Adds a piece of dq to the accumulator from registers. to: the first row block of the tile.
    __device__ void add(const QueryGradient& dq, float* to) const {
        constexpr int kOfWarpgroup =
            kRowBlocks == 2 ? kRowBlock * mod::kHeadDim : kPieceColumns / 8 * (kGroupBytes / 4);
        to += warpgroup * kOfWarpgroup + warp * 128 + lane * 4;
#pragma unroll
        for (int i = 0; i < kPieceColumns / 8; ++i)
            if (i < groups_of(warpgroup)) add_floats(to + i * (kGroupBytes / 4), &dq[0][4 * i]);
    }

  private:
    // Returns the operand word of the keys, at the columns of the warpgroup's piece of dq.
    __device__ unsigned key_columns() const {
        // The word also says how far apart panels are that lie side by side in one product.
        const unsigned word =
            operand_word(shared.base, kAlternatesDq && kPanels == 2 ? kKeyPanel : kQueryPanel) +
            keys;
        if constexpr (kAlternatesDq || kRowBlocks == 2)
            return word;
        else if constexpr (kPanels == 1 && kRowBlocks == 1)
            return word + warpgroup * (2 * kPieceColumns >> 4);
        else
            return word + min(warpgroup, kPanels - 1) * (kKeyPanel >> 4);
    }

    __device__ static unsigned d_scores_offset(int stage) {
        return stage % mod::kDScoresStages * (kDScoresBytes >> 4);
    }
};

} // namespace sm90
