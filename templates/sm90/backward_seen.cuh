// Which warpgroups' keys a tile of queries sees.
#pragma once

#include "common/place.cuh"
#include "sm90/backward_tiles.cuh"

namespace sm90 {

// Where a band hides all keys of one warpgroup from a tile of queries, that warpgroup skips dk and
// dv, and dq is summed over the other's keys only. Not where gradients of buffers need the
// registers that this takes.
constexpr bool kSkipsHidden = mod::kHasBand && kRowBlocks == 1 && !kSumsInTile &&
                              !kAddsBiasGradients && !kCopiesBiases && mod::kDScoresStages == 2 &&
                              (kHoldsQueryGradient || !mod::kAddsGradients);
// Found for the tile that comes, unless a block mask chooses it.
constexpr bool kSeesAhead = !mod::kHasBlockMask;
enum class Seen { both, own, other }; // warpgroups' keys
template <Seen kWhich> struct SeenKeys {
    static constexpr Seen kValue = kWhich;
};

// As far as the band says, of the keys of this warpgroup and of the other.
__device__ inline Seen seen_of(const HeadPlace& place, const KeyTile& keys, int warpgroup,
                               int tile) {
    const auto sees = [&](int which) {
        const int first = keys.first_kv + 64 * which;
        const Positions positions = place.queries_of(first, first + 63);
        return tile * mod::kQueryTile <= positions.last &&
               tile * mod::kQueryTile + mod::kQueryTile - 1 >= positions.first;
    };
    const bool own = sees(warpgroup), other = sees(1 - warpgroup);
    return own == other ? Seen::both : own ? Seen::own : Seen::other;
}

} // namespace sm90
