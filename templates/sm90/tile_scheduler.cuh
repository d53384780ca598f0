// Decides which tiles of queries a block computes, and in which order.
#pragma once

#include "common/select.h"
#include "common/sequence_length.cuh"
#include "common/tile_walk.cuh"
#include "sm90/forward_layout.cuh"

namespace sm90 {

// Whether the mask gives rows of tiles different amounts of work.
constexpr bool kRowsDiffer = mod::Mask::kHasBand || mod::Mask::kHasBlockMask;

struct Tile {
    int head; // over batch and query heads
    int first_row, end_row;

    // Returns false for a place of ragged queries that has no tile.
    __device__ bool exists() const {
        return !mod::Layouts::kQueriesAreRagged || first_row < end_row;
    }
};

// Returns the number of neighbouring heads whose keys and values, of up to kv_len rows, share the
// L2 cache.
__device__ inline int heads_in_cache(const AttentionArguments& attention, int heads) {
    constexpr int kCacheKeys = (32 << 20) / ((mod::kHeadDim + mod::kHeadDimV) * 2);
    const int sharers = attention.heads / attention.kv_heads;
    // A division of 64 bits would be a tenth of the time that ptxas takes.
    const int kv_len = mod::Layouts::kAreDense ? attention.kv_len : max(attention.kv_len, 1);
    const long long together = static_cast<long long>(max(kCacheKeys / kv_len, 1)) * sharers;
    return static_cast<int>(min(together, static_cast<long long>(heads)));
}

// Where a mask gives rows different amounts of work, tiles are in order of length among heads whose
// keys and values share the L2 cache: lengths fall in the last such group, so that blocks end
// together, rise in the group before it, and so on, so that there is no step between groups. A
// block mask has an order of its own of each head's tiles. Of short sequences, each is a group.
//
// Where tiles are alike but for a head's last, and that has rows for one warpgroup of three, the
// tile before gives it a warpgroup's rows, and these short tiles of all heads come last.
class DenseTiles {
  public:
    __device__ explicit DenseTiles(const AttentionArguments& attention)
        : block_mask_(attention.block_mask),
          tiles_((attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile),
          heads_(attention.batch * attention.heads), batch_(attention.batch),
          q_len_(attention.q_len), whole_(tiles_), group_(1), groups_(1) {
        if constexpr (kTilesMayBeShort)
            if (tiles_ > 1 && q_len_ <= (tiles_ - 1) * mod::kQueryTile + 64) whole_ = tiles_ - 2;
        if constexpr (kRowsDiffer) {
            if constexpr (!mod::ForwardSchedule::kGoesByHeads)
                group_ = heads_in_cache(attention, heads_);
            groups_ = (heads_ + group_ - 1) / group_;
        }
    }

    __device__ int tiles() const { return tiles_ * heads_; }

    __device__ Tile tile(int index) const {
        // Heads, or batch entries, that read the same biases, or kinds of pairs, read them
        // together.
        if constexpr ((kReadsBias && mod::DenseBias::kIsSharedByHeads) ||
                      (kHasPairKinds && !kRowsDiffer)) {
            const int of_batch = heads_ / batch_, tile = index / of_batch;
            return rows_of(tile / tiles_ * of_batch + index % of_batch,
                           tile % tiles_ * mod::kQueryTile);
        }
        if constexpr (kReadsBias) {
            const int tile = index / batch_;
            return rows_of(index % batch_ * (heads_ / batch_) + tile / tiles_,
                           tile % tiles_ * mod::kQueryTile);
        }
        if constexpr (!kRowsDiffer) {
            const int rest = index - whole_ * heads_;
            if (!kTilesMayBeShort || rest < 0)
                return rows_of(index / whole_, index % whole_ * mod::kQueryTile);
            return rows_of(rest / 2, whole_ * mod::kQueryTile + rest % 2 * kShortTile, kShortTile);
        }
        const int group = index / (group_ * tiles_);
        const int first_head = group * group_;
        const int width = min(group_, heads_ - first_head);
        const int rest = index - first_head * tiles_;
        const int rank = rest / width;
        const bool falling = (groups_ - 1 - group) % 2 == 0;
        const int head = first_head + rest % width;
        int tile = falling ? tiles_ - 1 - rank : rank;
        if constexpr (mod::Mask::kHasBlockMask) {
            const int of_batch = heads_ / batch_;
            tile = row_in_order(block_mask_, head / of_batch, head % of_batch, tiles_ - 1 - tile);
        }
        return rows_of(head, tile * mod::kQueryTile);
    }

  private:
    static constexpr int kShortTile = mod::kQueryTile - 64;
    static constexpr bool kTilesMayBeShort = mod::kQueryTile == 192 && kKeysMayPass && !kRowsDiffer;

    __device__ Tile rows_of(int head, int first_row, int rows = mod::kQueryTile) const {
        return {head, first_row, min(first_row + rows, q_len_)};
    }

    const BlockMask& block_mask_;
    int tiles_, heads_, batch_, q_len_;
    int whole_; // tiles of a head that are not short
    int group_, groups_;
};

// Tiles of ragged queries: goes through the places that tile_of_request() has, the last first, each
// for all heads whose keys share the L2 cache. A band gives later tiles of a request more keys;
// with a block mask, those that see most go first.
class RaggedTiles {
  public:
    __device__ explicit RaggedTiles(const AttentionArguments& attention)
        : attention_(attention),
          places_(ragged_tiles(attention, attention.q_rows, mod::kQueryTile)),
          group_(heads_in_cache(attention, attention.heads)) {}

    __device__ int tiles() const { return places_ * attention_.heads; }

    __device__ Tile tile(int index) const {
        const int first_head = index / (group_ * places_) * group_;
        const int width = min(group_, attention_.heads - first_head);
        const int rest = index - first_head * places_;
        const int rank = rest / width, own_head = first_head + rest % width;
        int place = places_ - 1 - rank;
        if constexpr (mod::Mask::kHasBlockMask)
            place = row_in_order(attention_.block_mask, 0, own_head, rank);
        const TileOfRequest found =
            tile_of_request(place, attention_.batch, mod::kQueryTile,
                            [&](int b) { return attention_.sequences.of(b).q_row; });
        const SequenceLength length(attention_, found.request);
        const int head = found.request * attention_.heads + own_head;
        if (found.tile < 0 || has_few_rows(length, attention_.heads / attention_.kv_heads))
            return {head, 0, 0};
        const int first_row = found.tile * mod::kQueryTile;
        return {head, first_row, min(first_row + mod::kQueryTile, length.query_rows())};
    }

  private:
    const AttentionArguments& attention_;
    int places_, group_; // places of a head; heads that go together
};

using TileScheduler = Select<mod::Layouts::kQueriesAreRagged, RaggedTiles, DenseTiles>;

// The kernel is persistent. A block's first tile is that of its number. Each later one is the next
// that no block has taken where tiles differ, and else goes by the block's number too. The queue is
// two integers, zero before and after a launch; without one, tiles go by number.
class TileQueue {
  public:
    __device__ explicit TileQueue(int* queue) : queue_(queue) {}

    // Returns the index of the tile after this one. Called early, because the answer takes long.
    __device__ int after(int index) const {
        const int blocks = static_cast<int>(gridDim.x);
        if (!kTilesDiffer || queue_ == nullptr) return index + blocks;
        return blocks + atomicAdd(queue_, 1);
    }
    __device__ void finish() const {
        if (kTilesDiffer && queue_ != nullptr)
            if (atomicAdd(queue_ + 1, 1) == static_cast<int>(gridDim.x) - 1) {
                queue_[0] = 0;
                queue_[1] = 0;
            }
    }

  private:
    static constexpr bool kTilesDiffer = kRowsDiffer || mod::Layouts::kQueriesAreRagged;

    int* queue_;
};

} // namespace sm90
