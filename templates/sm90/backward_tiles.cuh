// Which keys a block has, and which queries pass by.
#pragma once

#include "common/block_order.h"
#include "common/place.cuh"
#include "common/select.h"
#include "common/tile_walk.cuh"
#include "sm90/backward_lengths.cuh"
#include "sm90/backward_registers.cuh"

namespace sm90 {

constexpr bool kBatchesTogether = mod::kBatchesShareDenseBias && !mod::kHasBlockMask;

// A tile of keys of one head, and how long its batch entry is.
struct KeyTile : KeyLengths {
    int b, h_kv, first_kv;
    int count; // of tiles that a block mask names for the first of the query heads

    // The only one of the block. Where the kernel is persistent, none: load_key_tiles() says which.
    static __device__ KeyTile only(const AttentionArguments& attention,
                                   const mod::Arguments& arguments) {
        if constexpr (mod::kPersistent) return none();
        return KeyTile(attention, arguments, static_cast<int>(blockIdx.x));
    }
    // The same, found once more.
    static __device__ KeyTile only_again(const AttentionArguments& attention,
                                         const mod::Arguments& arguments) {
        return KeyTile(attention, arguments, computed_again(static_cast<int>(blockIdx.x)));
    }
    // Read again where it is used, which saves registers.
    static __device__ const KeyTile& in_shared(int slot) {
        return reinterpret_cast<const KeyTile*>(shared_memory + kLayout.key_tiles)[slot];
    }
    // After the last.
    static __device__ KeyTile none() { return KeyTile(0, 0, -1, 0); }
    __device__ bool is_none() const { return first_kv < 0; }

    __device__ void store(unsigned to) const {
        KeyLengths::store(to);
        store_shared(to + KeyLengths::kBytes, b, h_kv, first_kv, count);
    }

    __device__ TileLength length(const AttentionArguments& attention) const {
        return KeyLengths::of(attention, b);
    }
    // Where its rows are in tensors of keys: the first dim, the first row, and behind the last that
    // the batch entry has.
    __device__ int entry(const AttentionArguments& attention) const {
        return length(attention).entry();
    }
    __device__ int first_row(const AttentionArguments& attention) const {
        return static_cast<int>(length(attention).first_key_row()) + first_kv;
    }
    __device__ int end_row(const AttentionArguments& attention) const {
        return static_cast<int>(length(attention).first_key_row()) + length(attention).key_rows();
    }
    // For threads that hold the place.
    __device__ TileLength length(const AttentionArguments& attention,
                                 const HeadPlace& place) const {
        return KeyLengths::of(attention, place.b);
    }

    __device__ int index() const { return first_kv / mod::kKeyTile; }
    // Over batch and heads.
    __device__ int head(const AttentionArguments& attention) const {
        return b * attention.kv_heads + h_kv;
    }

    // How many a launch has; of ragged keys, places of tiles.
    static __device__ int count_of_launch(const AttentionArguments& attention) {
        if constexpr (mod::kKeysAreRagged)
            return ragged_tiles(attention, attention.kv_rows, mod::kKeyTile) * attention.kv_heads;
        return (attention.kv_len + mod::kKeyTile - 1) / mod::kKeyTile * attention.batch *
               attention.kv_heads;
    }

    // Where a band makes the first keys seen by most queries, they go first, where there is a block
    // mask, those that see most, and tiles of as many heads as share the L2 cache are together.
    // Else the tiles of a head are.
    __device__ KeyTile(const AttentionArguments& attention, const mod::Arguments& arguments,
                       int index) {
        if constexpr (mod::kKeysAreRagged) {
            *this = of_request(attention, index);
            return;
        }
        const int tiles = (attention.kv_len + mod::kKeyTile - 1) / mod::kKeyTile;
        int head = index / tiles, tile = index % tiles;
        if constexpr (mod::kHasBand || mod::kHasBlockMask) {
            const int sharers = attention.heads / attention.kv_heads;
            const BlockOrder order{tiles, attention.batch * attention.kv_heads,
                                   static_cast<long long>(attention.q_len) *
                                       (kQueryBytes * sharers),
                                   short_tiles(attention, arguments, tiles)};
            const HeadTile found = tile_of_block(order, index);
            head = found.head;
            tile = found.tile;
        }
        b = head / attention.kv_heads;
        h_kv = head % attention.kv_heads;
        // Batches that read or add to the same dense bias do so together: see index_of().
        if constexpr (kBatchesTogether) {
            b = index % attention.batch;
            h_kv = index / attention.batch / tiles;
            tile = index / attention.batch % tiles;
        }
        // The order is that of the group's first head, also for others that see different keys.
        if constexpr (mod::kHasBlockMask)
            tile = row_in_order(attention.block_mask, b,
                                h_kv * (attention.heads / attention.kv_heads), tile);
        first_kv = tile * mod::kKeyTile;
        count = 0;
        if constexpr (mod::kHasBlockMask)
            count = count_of(attention, h_kv * (attention.heads / attention.kv_heads));
    }

    // Of the block mask.
    __device__ long long mask_row(const AttentionArguments& attention, int h) const {
        return row_of_keys(attention.block_mask, length(attention), h, index());
    }
    __device__ int count_of(const AttentionArguments& attention, int h) const {
        return attention.block_mask.rows[mask_row(attention, h)].count;
    }

  private:
    static constexpr int kQueryBytes = 6 * mod::kHeadDim + 2 * mod::kHeadDimV; // with dq's sums

    __device__ KeyTile(int b, int h_kv, int first_kv, int count)
        : b(b), h_kv(h_kv), first_kv(first_kv), count(count) {}

    // Of ragged keys: places as tile_of_request has them, each for as many heads as share the L2
    // cache; none where the place has no tile. A band gives earlier tiles of a request more
    // queries; with a block mask, those that see most for the group's first head go first.
    static __device__ KeyTile of_request(const AttentionArguments& attention, int index) {
        constexpr int kCacheQueries = (32 << 20) / kQueryBytes;
        const int places = ragged_tiles(attention, attention.kv_rows, mod::kKeyTile);
        const int sharers = attention.heads / attention.kv_heads;
        const int group =
            min(max(kCacheQueries / max(attention.q_len, 1) / sharers, 1), attention.kv_heads);
        const int first_head = index / (group * places) * group;
        const int width = min(group, attention.kv_heads - first_head);
        const int rest = index - first_head * places;
        const int h_kv = first_head + rest % width;
        int place = rest / width;
        if constexpr (mod::kHasBlockMask)
            place = row_in_order(attention.block_mask, 0, h_kv * sharers, place);
        const TileOfRequest found =
            tile_of_request(place, attention.batch, mod::kKeyTile,
                            [&](int b) { return attention.sequences.of(b).kv_row; });
        const RequestLength length(attention, found.request);
        const int first_key = found.tile * mod::kKeyTile;
        if (found.tile < 0 || first_key >= length.key_rows()) return none();
        KeyTile keys(found.request, h_kv, first_key, 0);
        static_cast<KeyLengths&>(keys) = KeyLengths(length);
        if constexpr (mod::kHasBlockMask) keys.count = keys.count_of(attention, h_kv * sharers);
        return keys;
    }

    // How many tiles at the end have fewer queries, because the queries end before the band does.
    // Found for the first head and used for all, since any order is correct. None where they would
    // be most tiles, as under a causal mask.
    static __device__ int short_tiles(const AttentionArguments& attention,
                                      const mod::Arguments& arguments, int tiles) {
        if constexpr (!mod::kHasBand || mod::kHasBlockMask || mod::kClamps != 0) return 0;
        const int low = HeadPlace(attention, arguments, 0).low;
        const int whole = max(attention.q_len + low, 0) / mod::kKeyTile;
        return whole < tiles && 2 * whole >= tiles ? tiles - whole : 0;
    }
};

// The tiles of keys of a block, one after the other, for one thread beside the MMAs, or for a
// whole warp: visit(keys, how many before). keys: the only one, where the kernel is not persistent.
template <bool kWholeWarp, typename Visit>
__device__ inline void visit_key_tiles(Shared shared, const KeyTile& keys, Visit visit) {
    if constexpr (!mod::kPersistent) {
        visit(keys, 0u);
    } else {
#pragma unroll 1
        for (unsigned tiles = 0;; ++tiles) {
            const int slot = static_cast<int>(tiles % kKeySlots);
            shared.keys(slot).wait(tiles / kKeySlots % 2);
            const KeyTile& next = KeyTile::in_shared(slot);
            if (next.is_none()) return;
            visit(next, tiles);
            if constexpr (kWholeWarp) __syncwarp();
            if (threadIdx.x % 32 == 0) shared.keys_empty(slot).arrive();
        }
    }
}

// Where the kernel is persistent or registers are short, from what keys say; elsewhere dividing
// takes fewer.
__device__ inline HeadPlace place_of(const AttentionArguments& attention,
                                     const mod::Arguments& arguments, const KeyTile& keys, int h) {
    if constexpr (mod::kPersistent || kNeedsRegisters)
        return HeadPlace(arguments, keys.length(attention), h, keys.h_kv);
    else
        return HeadPlace(attention, arguments, keys.b * attention.heads + h);
}

// What the loop over heads computes again in each turn, where registers are short: nothing, the
// number of heads, or everything but the head's number over batch and heads.
enum class HeadLoop { keeps, counts_again, finds_again };

// Every tile of queries that sees something of the keys, of every query head that reads them, in
// the order in which all of a block's threads visit them: visit_head(place, tiles). Where there is
// a map, `tiles` is 0 and how many it names.
template <HeadLoop kLoop = HeadLoop::keeps, typename Visit>
__device__ inline void visit_heads(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const KeyTile& keys,
                                   Visit visit_head) {
    const int group = attention.heads / attention.kv_heads;
    TileLength length = keys.length(attention);
    const int last_kv = min(keys.first_kv + mod::kKeyTile, length.keys()) - 1;
    // The program must not be asked for the place of requests without queries, or of rows that are
    // not used.
    if (!mod::kIsDense && (keys.first_kv > last_kv || length.queries() == 0)) return;
    const auto end = [&] {
        if constexpr (kLoop == HeadLoop::finds_again)
            return (KeyTile::only_again(attention, arguments).h_kv + 1) *
                   (computed_again(attention.heads) / attention.kv_heads);
        // Beside score mods a division takes more registers than it frees.
        constexpr bool kCounts = kLoop == HeadLoop::counts_again;
        const bool divides = kCounts || (kSaves.keys_again && !mod::kHasScoreMod);
        return ((kCounts ? computed_again(keys.h_kv) : keys.h_kv) + 1) *
               (divides ? computed_again(attention.heads) / attention.kv_heads : group);
    };
    int count = keys.count;
    const int before = kLoop == HeadLoop::finds_again ? keys.b * attention.heads : 0;
#pragma unroll 1
    for (int head = before + keys.h_kv * group; head - before < end(); ++head) {
        const int h = head - before;
        const HeadPlace place = place_of(attention, arguments, keys, h);
        if constexpr (mod::kHasBlockMask) {
            visit_head(place, {0, count});
            if (h + 1 < end()) count = keys.count_of(attention, h + 1);
            continue;
        }
        int first = keys.first_kv, last = last_kv;
        if constexpr (kSaves.keys_again) {
            first = computed_again(first);
            last = min(first + mod::kKeyTile, length.keys()) - 1;
        }
        visit_head(place,
                   tiles_between(place.queries_of(first, last), length.queries(), mod::kQueryTile));
    }
}

// The i-th that a block visits, and from one to the next. In deterministic mode the last comes
// first: see backward_ordered_dq.cuh.
constexpr int kTileStep = mod::kDeterministic ? -1 : 1;
__device__ inline int tile_in_order(TileRange tiles, int i) {
    return mod::kDeterministic ? tiles.end - 1 - (i - tiles.begin) : i;
}

// Which tile of queries a stage holds, for threads that count: the one they expect, or the one that
// a block mask chose.
struct ExpectedTile {
    template <typename Gradients>
    static __device__ int arrived(const Shared&, int, int expected, Gradients&) {
        return expected;
    }
};
struct ChosenTile {
    template <typename Gradients>
    static __device__ int arrived(const Shared& shared, int stage, int, Gradients& gradients) {
        const MaskTile tile = MaskTile::load(shared.mask_tile(stage));
        gradients.use_block_mask(tile.is_full);
        return tile.index;
    }
};
using StageTile = Select<mod::kHasBlockMask, ChosenTile, ExpectedTile>;

// Which tiles these are, for threads that find out by themselves.
class QueryTiles {
  public:
    __device__ QueryTiles(const AttentionArguments& attention, const HeadPlace& place,
                          const KeyTile& keys, TileRange tiles)
        : walk_(attention.block_mask, keys.mask_row(attention, place.h), tiles), tiles_(tiles) {}

    __device__ bool is_done() const { return walk_.is_done(); }
    __device__ bool is_full() const { return walk_.is_full(); }
    __device__ void advance() { walk_.advance(); }
    __device__ int tile() const {
        return mod::kHasBlockMask ? walk_.tile() : tile_in_order(tiles_, walk_.tile());
    }

  private:
    TileWalk walk_;
    TileRange tiles_;
};

} // namespace sm90
