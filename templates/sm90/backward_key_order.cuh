// Orders in which blocks take a launch's tiles of keys, a class for each: count() returns the
// number of tiles, tile() the index-th of them.
#pragma once

#include "common/block_order.h"
#include "common/select.h"
#include "common/tile_walk.cuh"
#include "sm90/backward_key_tile.cuh"

namespace sm90 {

// Bytes that a query takes of the L2 cache: q, d_out and the sums of dq.
constexpr int kQueryBytes = 6 * mod::kHeadDim + 2 * mod::kHeadDimV;

// Tiles of one head come after those of another.
struct HeadAfterHead {
    static __device__ int count(const AttentionArguments& attention) {
        return tiles_of_head(attention) * attention.batch * attention.kv_heads;
    }
    static __device__ KeyTile tile(const AttentionArguments& attention, const mod::Arguments&,
                                   int index) {
        const int tiles = tiles_of_head(attention);
        return tile_of(attention, {index / tiles, index % tiles});
    }

  protected:
    static __device__ int tiles_of_head(const AttentionArguments& attention) {
        return (attention.kv_len + mod::kKeyTile - 1) / mod::kKeyTile;
    }
    static __device__ int group(const AttentionArguments& attention) {
        return attention.heads / attention.kv_heads;
    }
    static __device__ KeyTile tile_of(const AttentionArguments& attention, const HeadTile& place) {
        return {place.head / attention.kv_heads, place.head % attention.kv_heads,
                place.tile * mod::kKeyTile};
    }
};

// The same tile of all batch entries comes together, since these read or add to the same part of a
// dense bias.
struct BatchesTogether : HeadAfterHead {
    static __device__ KeyTile tile(const AttentionArguments& attention, const mod::Arguments&,
                                   int index) {
        const int tiles = tiles_of_head(attention), of_batch = index / attention.batch;
        return {index % attention.batch, of_batch / tiles, of_batch % tiles * mod::kKeyTile};
    }
};

// Number of tiles at the end of a head that fewer queries see than those before: taken as none.
struct NoShortTiles {
    static __device__ int count(const AttentionArguments&, const mod::Arguments&, int) { return 0; }
};
// Counts the tiles that fewer queries see because these end before the band does. Found for the
// first head and used for all, since any order is correct. None if they would be most tiles, as
// under a causal mask.
struct TilesPastTheBand {
    static __device__ int count(const AttentionArguments& attention,
                                const mod::Arguments& arguments, int tiles) {
        const int low = HeadPlace(attention, arguments, 0).low;
        const int whole = max(attention.q_len + low, 0) / mod::kKeyTile;
        return whole < tiles && 2 * whole >= tiles ? tiles - whole : 0;
    }
};

// Tiles of as many heads as share the L2 cache come together. The first tiles come first, since
// under a band most queries see the first keys.
template <typename ShortTiles> struct FirstTilesFirst : HeadAfterHead {
    static __device__ KeyTile tile(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, int index) {
        return tile_of(attention, place_of(attention, arguments, index));
    }

  protected:
    static __device__ HeadTile place_of(const AttentionArguments& attention,
                                        const mod::Arguments& arguments, int index) {
        const int tiles = tiles_of_head(attention);
        const int sharers = group(attention);
        return tile_of_block({tiles, attention.batch * attention.kv_heads,
                              static_cast<long long>(attention.q_len) * (kQueryBytes * sharers),
                              ShortTiles::count(attention, arguments, tiles)},
                             index);
    }
};

// In each head, tiles that most queries see come first, by the block mask. The order is that of the
// group's first query head, also for heads that see different keys.
struct LongestTilesFirst : FirstTilesFirst<NoShortTiles> {
    static __device__ KeyTile tile(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, int index) {
        const HeadTile place = place_of(attention, arguments, index);
        const int b = place.head / attention.kv_heads, h_kv = place.head % attention.kv_heads;
        const int tile = row_in_order(attention.block_mask, b, h_kv * group(attention), place.tile);
        KeyTile keys(b, h_kv, tile * mod::kKeyTile);
        keys.count = keys.count_of(attention, h_kv * group(attention));
        return keys;
    }
};

// Takes the places that tile_of_request() has for ragged keys as they are, since under a band more
// queries see the earlier tiles of a request.
struct PlacesOfRequests {
    static __device__ int place(const AttentionArguments&, int, int index) { return index; }
    static __device__ void count(const AttentionArguments&, KeyTile&, int) {}
};
// Takes those places first whose keys most queries see, by the block mask of the group's first
// query head.
struct LongestPlacesFirst {
    static __device__ int place(const AttentionArguments& attention, int first_head, int index) {
        return row_in_order(attention.block_mask, 0, first_head, index);
    }
    static __device__ void count(const AttentionArguments& attention, KeyTile& keys,
                                 int first_head) {
        keys.count = keys.count_of(attention, first_head);
    }
};

// Takes each place for as many heads as share the L2 cache; returns none if the place has no tile.
template <typename Places> struct RequestAfterRequest {
    static __device__ int count(const AttentionArguments& attention) {
        return ragged_tiles(attention, attention.kv_rows, mod::kKeyTile) * attention.kv_heads;
    }
    static __device__ KeyTile tile(const AttentionArguments& attention, const mod::Arguments&,
                                   int index) {
        constexpr int kCacheQueries = (32 << 20) / kQueryBytes;
        const int places = ragged_tiles(attention, attention.kv_rows, mod::kKeyTile);
        const int sharers = attention.heads / attention.kv_heads;
        const int together =
            min(max(kCacheQueries / max(attention.q_len, 1) / sharers, 1), attention.kv_heads);
        const int first_head = index / (together * places) * together;
        const int width = min(together, attention.kv_heads - first_head);
        const int rest = index - first_head * places;
        const int h_kv = first_head + rest % width;
        const int place = Places::place(attention, h_kv * sharers, rest / width);
        const TileOfRequest found =
            tile_of_request(place, attention.batch, mod::kKeyTile,
                            [&](int b) { return attention.sequences.of(b).kv_row; });
        const RequestLength length(attention, found.request);
        const int first_key = found.tile * mod::kKeyTile;
        if (found.tile < 0 || first_key >= length.key_rows()) return KeyTile::none();
        KeyTile keys(found.request, h_kv, first_key);
        static_cast<KeyLengths&>(keys) = KeyLengths(length);
        Places::count(attention, keys, h_kv * sharers);
        return keys;
    }
};

constexpr bool kBatchesTogether = mod::DenseBias::kIsSharedByBatches && !mod::Mask::kHasBlockMask;
using BandOrder = FirstTilesFirst<Select<mod::Mask::kClamps == 0, TilesPastTheBand, NoShortTiles>>;
using DenseKeyOrder = Select<mod::Mask::kHasBlockMask, LongestTilesFirst,
                             Select<kBatchesTogether, BatchesTogether,
                                    Select<mod::Mask::kHasBand, BandOrder, HeadAfterHead>>>;
using RaggedKeyOrder =
    RequestAfterRequest<Select<mod::Mask::kHasBlockMask, LongestPlacesFirst, PlacesOfRequests>>;
using KeyTileOrder = Select<mod::Layouts::kKeysAreRagged, RaggedKeyOrder, DenseKeyOrder>;

} // namespace sm90
