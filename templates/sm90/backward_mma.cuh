// Products that both backward kernels have, and the store of P or dS as an operand of later ones.
#pragma once

#include "sm90/backward_registers.cuh"
#include "sm90/backward_scores.cuh"
#include "sm90/wgmma_fixed.cuh"

namespace sm90 {

// Issues scores = A B', summed over kColumns columns of both. A's second panel starts at column
// kPanelOfA.
template <int kA, int kB, int kColumns, int kPanelOfA = kPanelColumns, int kStep = 0>
__device__ inline void issue_scores(Scores& scores, unsigned a, unsigned b) {
    using P = FixedWgmma<mod::Element, kScoreQueries>;
    constexpr int kPanel = place_of_panel(kStep / 4, panels(kColumns)), kInside = kStep % 4 * 32;
    constexpr int kBefore = kPanel == 0 ? 0 : (kPanelColumns - kPanelOfA) * 2;
    constexpr int kFromA = kA + kPanel * kKeyPanel + kBefore + kInside;
    constexpr int kFromB = kB + kPanel * kQueryPanel + kInside;
    constexpr bool kIsPanel = kInside == 0 && 16 * (kStep + 3) < kColumns;
    if constexpr (kIsPanel && kStep == 0)
        P::template start_four<kFromA, kFromB, false>(scores, a, b);
    else if constexpr (kIsPanel)
        P::template add_four<kFromA, kFromB, false>(scores, a, b);
    else if constexpr (kStep == 0)
        P::template start<kFromA, kFromB, false>(scores, a, b);
    else
        P::template add<kFromA, kFromB, false>(scores, a, b);
    constexpr int kNext = kStep + (kIsPanel ? 4 : 1);
    if constexpr (16 * kNext < kColumns)
        issue_scores<kA, kB, kColumns, kPanelOfA, kNext>(scores, a, b);
}

// Issues sums += fragments B, over the tile's queries.
template <int kB, int kStep = 0, int kCount>
__device__ inline void issue_sums(float (&sums)[kCount], const Fragments& fragments, unsigned b) {
    static_assert(mod::kQueryTile % 64 == 0);
    FixedWgmma<mod::Element, 2 * kCount>::template add_four_registers<kB + kStep * 16 * kRowBytes>(
        sums, &fragments[kStep], b);
    if constexpr (16 * (kStep + 4) < mod::kQueryTile) issue_sums<kB, kStep + 4>(sums, fragments, b);
}

// Stores a warp's fragments with a row for each query, in a panel of 64 keys.
__device__ inline void store_by_queries(unsigned panel, const Fragments& fragments, int warp,
                                        int lane) {
    if constexpr (mod::kPersistent || kSaves.positions_again)
        lane = computed_again(lane); // or what follows would spill
    if constexpr (kSaves.lane_again) lane = lane_again();
    const unsigned row = lane % 8 + lane / 16 * 8;
    const unsigned chunk = (2 * warp + lane / 8 % 2) ^ (lane % 8);
    const unsigned to = panel + row * kRowBytes + chunk * 16;
#pragma unroll
    for (int i = 0; i < kScoreQueries / 16; ++i)
        store_transposed(to + i * 16 * kRowBytes, fragments[i][0], fragments[i][1], fragments[i][2],
                         fragments[i][3]);
}

} // namespace sm90
