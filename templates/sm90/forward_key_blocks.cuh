// Chooses the tiles of keys that a tile of queries visits: those of a range, in a fixed order or
// from where most is added to scores, or those that a block mask names. The producer decides, and
// tells consumers each tile that they cannot tell from the range.
#pragma once

#include "common/select.h"
#include "common/tile_walk.cuh"
#include "sm90/forward_layout.cuh"
#include "sm90/key_walk.cuh"

namespace sm90 {

// Tiles of keys from the first to the last that the band shows to any row.
class KeyRange {
  public:
    static __device__ TileRange of(const AttentionArguments&, const HeadPlace& place,
                                   const SequenceLength& length, int first_row, int end_row) {
        const int end = mod::Layouts::kAreDense ? end_row : min(end_row, length.queries());
        return visible_tiles(place, length, first_row, end - 1, mod::kKeyStep);
    }

    // Calls visit(index) for all tiles.
    template <typename Visit>
    static __device__ void visit(const AttentionArguments&, const Task& task, const Visit& visit) {
        KeyOrder order(task.begin, task.end);
#pragma unroll 1
        for (int next = task.end - 1; next >= task.begin; --next) {
            visit(order.tile(next));
            order.advance();
        }
    }

    // Calls load_key(tile), load_query() and load_value(index) in the order in which consumers need
    // them: values one step after their keys.
    template <typename LoadKey, typename LoadQuery, typename LoadValue>
    static __device__ void load(const KernelArguments&, const mod::Arguments&, const Task& task,
                                const LoadKey& load_key, const LoadQuery& load_query,
                                const LoadValue& load_value) {
        KeyOrder order(task.begin, task.end);
        if (task.begin < task.end) load_key({task.end - 1, false});
        load_query();
#pragma unroll 1
        for (int next = task.end - 1; next >= task.begin; --next) {
            if (next > task.begin) load_key({order.after(next), false});
            load_value(order.tile(next));
            order.advance();
        }
    }

    // The producer announces the tile that a stage of keys holds; at() returns it to consumers.
    // next: the tile that it holds by the order of the range.
    static __device__ void announce(const Shared&, int, MaskTile) {}
    static __device__ MaskTile at(const Shared&, int, int next) { return {next, false}; }
};

// Tiles of the range, from where most is added to scores. Consumers only count them.
class KeysFromHighest : public KeyRange {
  public:
    template <typename LoadKey, typename LoadQuery, typename LoadValue>
    static __device__ void load(const KernelArguments& attention, const mod::Arguments& arguments,
                                const Task& task, const LoadKey& load_key,
                                const LoadQuery& load_query, const LoadValue& load_value) {
        KeyWalk walk(attention, arguments, task);
        int left = task.end - task.begin;
        if (left > 0) load_key({walk.tile(), false});
        load_query();
#pragma unroll 1
        for (; left > 0; --left) {
            const int tile = walk.tile();
            walk.advance();
            if (left > 1) load_key({walk.tile(), false});
            load_value(tile);
        }
    }

    static __device__ void announce(const Shared& shared, int stage, MaskTile tile) {
        tile.store(shared.key_block(stage));
    }
    static __device__ MaskTile at(const Shared& shared, int stage, int) {
        return MaskTile::load(shared.key_block(stage));
    }
};

// Tiles that a block mask names, from the first on.
class MaskedKeys {
  public:
    // Returns 0 and the number of tiles, as consumers only count them.
    static __device__ TileRange of(const AttentionArguments& attention, const HeadPlace& place,
                                   const SequenceLength& length, int first_row, int) {
        const long long row =
            row_of_queries(attention.block_mask, length, place.h, first_row / mod::kQueryTile);
        return {0, attention.block_mask.rows[row].count};
    }

    template <typename Visit>
    static __device__ void visit(const AttentionArguments& attention, const Task& task,
                                 const Visit& visit) {
#pragma unroll 1
        for (TileWalk walk = walk_of(attention, task); !walk.is_done(); walk.advance())
            visit(walk.tile());
    }
    template <typename LoadKey, typename LoadQuery, typename LoadValue>
    static __device__ void load(const KernelArguments& attention, const mod::Arguments&,
                                const Task& task, const LoadKey& load_key,
                                const LoadQuery& load_query, const LoadValue& load_value) {
        TileWalk walk = walk_of(attention, task);
        if (!walk.is_done()) load_key({walk.tile(), walk.is_full()});
        load_query();
#pragma unroll 1
        while (!walk.is_done()) {
            const int tile = walk.tile();
            walk.advance();
            if (!walk.is_done()) load_key({walk.tile(), walk.is_full()});
            load_value(tile);
        }
    }

    static __device__ void announce(const Shared& shared, int stage, MaskTile tile) {
        tile.store(shared.key_block(stage));
    }
    static __device__ MaskTile at(const Shared& shared, int stage, int) {
        return MaskTile::load(shared.key_block(stage));
    }

  private:
    static __device__ TileWalk walk_of(const AttentionArguments& attention, const Task& task) {
        const SequenceLength length(attention, task.b);
        return {
            attention.block_mask,
            row_of_queries(attention.block_mask, length, task.h, task.first_row / mod::kQueryTile),
            {0, 0}};
    }
};

using KeyBlocks = Select<mod::Mask::kHasBlockMask, MaskedKeys,
                         Select<mod::ForwardSchedule::kStartsAtHighest, KeysFromHighest, KeyRange>>;

} // namespace sm90
