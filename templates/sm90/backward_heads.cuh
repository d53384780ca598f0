// Loops over the query heads that read a tile of keys, and the tiles of queries of each that see
// it.
#pragma once

#include "common/place.cuh"
#include "common/select.h"
#include "common/tile_walk.cuh"
#include "sm90/backward_key_order.cuh"
#include "sm90/backward_registers.cuh"

namespace sm90 {

// How a query head's place is found: in persistent kernels, or where registers are short, from the
// tile of keys; else from the head's index over batch and heads, where the division takes fewer
// registers.
struct PlaceByKeys {
    static __device__ HeadPlace of(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const KeyTile& keys, int h) {
        return HeadPlace(arguments, keys.length(attention), h, keys.h_kv);
    }
};
struct PlaceByHead {
    static __device__ HeadPlace of(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const KeyTile& keys, int h) {
        return HeadPlace(attention, arguments, keys.b * attention.heads + h);
    }
};
using PlaceOfHead = Select<mod::kPersistent || kNeedsRegisters, PlaceByKeys, PlaceByHead>;

// How the loop over a group's query heads finds its end. It counts heads of the batch entry, from
// before() on. Here the size of the group stays in a register.
struct KeepsHeads {
    static __device__ int before(const AttentionArguments&, const KeyTile&) { return 0; }
    static __device__ int end(const AttentionArguments&, const mod::Arguments&, const KeyTile& keys,
                              int group) {
        return (keys.h_kv + 1) * group;
    }
};
// Where registers are short, computes the size of the group again in each iteration.
struct DividesAgain : KeepsHeads {
    static __device__ int end(const AttentionArguments& attention, const mod::Arguments&,
                              const KeyTile& keys, int) {
        return (keys.h_kv + 1) * (computed_again(attention.heads) / attention.kv_heads);
    }
};
// The same; the head of keys is computed again, too.
struct CountsAgain : KeepsHeads {
    static __device__ int end(const AttentionArguments& attention, const mod::Arguments&,
                              const KeyTile& keys, int) {
        return (computed_again(keys.h_kv) + 1) *
               (computed_again(attention.heads) / attention.kv_heads);
    }
};
// Computes everything again but the head's index, which it counts over batch and heads.
struct FindsAgain {
    static __device__ int before(const AttentionArguments& attention, const KeyTile& keys) {
        return keys.b * attention.heads;
    }
    static __device__ int end(const AttentionArguments& attention, const mod::Arguments& arguments,
                              const KeyTile&, int) {
        const int block = computed_again(static_cast<int>(blockIdx.x));
        return (KeyTileOrder::tile(attention, arguments, block).h_kv + 1) *
               (computed_again(attention.heads) / attention.kv_heads);
    }
};
// Beside score mods a division takes more registers than it frees.
using HeadLoop = Select<kSaves.keys_again && !mod::kHasScoreMod, DividesAgain, KeepsHeads>;

// How a tile's first and last key are found: kept in registers, or computed again for each head.
struct KeptEnds {
    static __device__ void find(const TileLength&, int&, int&) {}
};
struct EndsAgain {
    static __device__ void find(const TileLength& length, int& first, int& last) {
        first = computed_again(first);
        last = min(first + mod::kKeyTile, length.keys()) - 1;
    }
};
using KeyEnds = Select<kSaves.keys_again, EndsAgain, KeptEnds>;

// Finds the tiles of queries of one head after the other: those of a range, by the mask's band.
struct RangeOfTiles {
    __device__ explicit RangeOfTiles(const KeyTile&) {}
    static __device__ TileRange of(const HeadPlace& place, TileLength length, int first, int last) {
        KeyEnds::find(length, first, last);
        return tiles_between(place.queries_of(first, last), length.queries(), mod::kQueryTile);
    }
    template <typename End>
    static __device__ void advance(const AttentionArguments&, const KeyTile&, int, End) {}
};
// Finds the number of tiles that a block mask names for each head; the range begins at 0.
class NamedTiles {
  public:
    __device__ explicit NamedTiles(const KeyTile& keys) : count_(keys.count) {}
    __device__ TileRange of(const HeadPlace&, const TileLength&, int, int) const {
        return {0, count_};
    }
    template <typename End>
    __device__ void advance(const AttentionArguments& attention, const KeyTile& keys, int h,
                            End end) {
        if (h + 1 < end()) count_ = keys.count_of(attention, h + 1);
    }

  private:
    int count_;
};
using TilesOfHead = Select<mod::Mask::kHasBlockMask, NamedTiles, RangeOfTiles>;

// Calls visit_head(place, tiles) for every query head that reads the keys, with the tiles of
// queries that see something of them. All threads of a block visit heads in the same order.
template <typename Loop = HeadLoop, typename Visit>
__device__ inline void visit_heads(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const KeyTile& keys,
                                   Visit visit_head) {
    const int group = attention.heads / attention.kv_heads;
    TileLength length = keys.length(attention);
    const int last_kv = min(keys.first_kv + mod::kKeyTile, length.keys()) - 1;
    // The program must not be asked for the place of requests without queries, or of rows that are
    // not used.
    if (!mod::Layouts::kAreDense && (keys.first_kv > last_kv || length.queries() == 0)) return;
    const auto end = [&] { return Loop::end(attention, arguments, keys, group); };
    TilesOfHead tiles(keys);
    const int before = Loop::before(attention, keys);
#pragma unroll 1
    for (int head = before + keys.h_kv * group; head - before < end(); ++head) {
        const int h = head - before;
        const HeadPlace place = PlaceOfHead::of(attention, arguments, keys, h);
        visit_head(place, tiles.of(place, length, keys.first_kv, last_kv));
        tiles.advance(attention, keys, h, end);
    }
}

} // namespace sm90
