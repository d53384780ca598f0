// Finds which warpgroups' keys a tile of queries sees, so that hidden halves can be skipped.
#pragma once

#include "common/place.cuh"
#include "common/select.h"
#include "sm90/backward_key_tile.cuh"
#include "sm90/backward_query_gradient.cuh"
#include "sm90/backward_registers.cuh"

namespace sm90 {

enum class KeyHalves { both, own, other }; // keys of both warpgroups, of this one, of the other
template <KeyHalves kWhich> struct ProductOver {
    static constexpr KeyHalves kValue = kWhich;
    // Issues the product for dq, dS K over these keys.
    static __device__ void multiply(const QueryPiece& piece, QueryGradient& dq, int stage, int) {
        piece.multiply_keys(dq, stage);
    }
};
template <>
__device__ inline void ProductOver<KeyHalves::own>::multiply(const QueryPiece& piece,
                                                             QueryGradient& dq, int stage,
                                                             int warpgroup) {
    piece.multiply_keys_of(dq, stage, warpgroup);
}

// Returns whose keys a tile of queries may see, as far as the band says.
__device__ inline KeyHalves key_halves_of(const HeadPlace& place, const KeyTile& keys,
                                          int warpgroup, int tile) {
    const auto sees = [&](int which) {
        const int first = keys.first_kv + 64 * which;
        const Positions positions = place.queries_of(first, first + 63);
        return tile * mod::kQueryTile <= positions.last &&
               tile * mod::kQueryTile + mod::kQueryTile - 1 >= positions.first;
    };
    const bool own = sees(warpgroup), other = sees(1 - warpgroup);
    return own == other ? KeyHalves::both : own ? KeyHalves::own : KeyHalves::other;
}

// Every tile is multiplied with all keys.
struct AllKeyHalves {
    // Called for the tile that comes next, and for the one that has arrived.
    __device__ void find_next(const HeadPlace&, const KeyTile&, int, int) {}
    __device__ void find_arrived(const HeadPlace&, const KeyTile&, int, int) {}
    // Calls multiply(ProductOver), or skip(), for the tile of the last call.
    template <typename Multiply, typename Skip>
    __device__ void visit(Multiply multiply, Skip) const {
        multiply(ProductOver<KeyHalves::both>{});
    }
};

// Where a band hides all keys of one warpgroup from a tile of queries, that warpgroup skips dk and
// dv, and dq is summed over the other's keys only.
class KeyHalvesInBand {
  public:
    // Finds the halves of the tile that comes next; if a block mask chooses it, find_arrived()
    // does.
    __device__ void find_next(const HeadPlace& place, const KeyTile& keys, int warpgroup,
                              int tile) {
        if (!mod::Mask::kHasBlockMask) halves_ = key_halves_of(place, keys, warpgroup, tile);
    }
    __device__ void find_arrived(const HeadPlace& place, const KeyTile& keys, int warpgroup,
                                 int tile) {
        if (mod::Mask::kHasBlockMask) halves_ = key_halves_of(place, keys, warpgroup, tile);
    }
    template <typename Multiply, typename Skip>
    __device__ void visit(Multiply multiply, Skip skip) const {
        if (halves_ == KeyHalves::other)
            skip();
        else if (halves_ == KeyHalves::own)
            multiply(ProductOver<KeyHalves::own>{});
        else
            multiply(ProductOver<KeyHalves::both>{});
    }

  private:
    KeyHalves halves_ = KeyHalves::both;
};

// Skipping takes registers that gradients of buffers may need, and copies of the main loop.
constexpr bool kSkipsHidden = mod::Mask::kHasBand && !mod::ScoreDerivative::kIsWrittenOnce &&
                              kRowBlocks == 1 && !kSumsInTile && !kSumsEntries &&
                              !kAddsBiasGradients && !kAreAlone && !kCopiesBiases &&
                              mod::kDScoresStages == 2 &&
                              (kHoldsQueryGradient || !mod::ReadGradients::kComeFromElements);
using KeyHalvesOfTile = Select<kSkipsHidden, KeyHalvesInBand, AllKeyHalves>;

} // namespace sm90
