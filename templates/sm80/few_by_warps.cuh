// Computes the rows of requests with few queries by teams of warps. A team has a warp for each tile
// of rows. Teams take tiles of keys in turn (few_tiles.cuh), without waiting for each other: each
// warp loads one tile of keys and computes its own rows over the tiles of the whole team. Results
// are merged at the end.
#pragma once

#include "sm80/few_block.cuh"
#include "sm80/forward_step.cuh"
#include "sm80/warp_key_loader.cuh"

namespace sm80 {

constexpr int kWarpBytes = few_warp_bytes(kSizes);

// Shared memory: tiles of queries, then each warp's stages of keys, which later hold its results.
struct BlockMemory {
    unsigned base;
    int query_tiles; // of which there is memory

    __device__ QueryTile queries(int tile) const { return {base + tile * kLayout.stages}; }
    __device__ Shared of_warp(int tile, int warp) const {
        return {queries(tile).base, queries(query_tiles).base + warp * kWarpBytes};
    }
};
__device__ inline Staging results_of(const Shared& shared) { return {shared.stages}; }

// Adjacent warps that share tiles of keys; each has a tile of rows of its own.
struct Team {
    int size; // 1, 2 or 4

    __device__ explicit Team(int tiles) : size(tiles <= 2 ? tiles : 4) {}
    __device__ int member() const { return warp_index() & (size - 1); }
    __device__ int first_warp() const { return warp_index() - member(); }
    __device__ int count() const { return kBlockWarps / size; }
    // A barrier of the team's warps, after which shared memory that they have written is visible to
    // all of them.
    __device__ void sync() const {
        if (size == 1)
            __syncwarp();
        else
            asm volatile("bar.sync %0, %1;" ::"r"(1 + first_warp()), "r"(32 * size) : "memory");
    }
};

// Keys that some row of the block may see.
__device__ inline Positions seen_by_all(Positions own, const Team& team) {
    if (team.size == 1) return own;
    __shared__ Positions of_warps[kBlockWarps];
    if (lane_index() == 0) of_warps[warp_index()] = own;
    __syncthreads();
#pragma unroll
    for (int warp = 0; warp < kBlockWarps; ++warp) {
        const Positions other = of_warps[warp];
        if (other.first > other.last) continue;
        own = own.first > own.last
                  ? other
                  : Positions{min(own.first, other.first), max(own.last, other.last)};
    }
    return own;
}

// What a warp tells the others of its team about the tile of keys that it has loaded.
struct LoadedTile {
    int tile;
    bool is_full; // nothing is hidden in it
};
__shared__ LoadedTile loaded_tiles[kBlockWarps];

// Tiles of a team that a warp computes at once, so that their products and shuffles overlap. With
// 8-bit keys or a block mask there are registers for one only.
constexpr int kTilesAtOnce = mod::Mask::kHasBlockMask || kKeysAreNarrow ? 1 : 2;
template <int kTiles> struct Tiles {
    static constexpr int kCount = kTiles;
};

using Walk = TilesOfWarp<kBlockWarps>;
__device__ inline LoadedTile loaded_of(const Walk& walk) { return {walk.tile(), walk.is_full()}; }
__device__ inline void tell_team(const Walk& walk, const Team& team) {
    if (team.size > 1 && lane_index() == 0) loaded_tiles[warp_index()] = loaded_of(walk);
}

// Computes `tiles` tiles of rows. most_tiles: how many the blocks of this launch may have; when the
// caller passes a constant 1, it is known to every loop.
__device__ inline void attend_by_warps(const FewBlock& block, int tiles, int most_tiles) {
    const auto& attention = block.attention;
    const auto& arguments = block.arguments;
    const SequenceLength& length = block.length;
    const PartOfRequest& at = block.at;
    const int group = block.group, h_kv = block.h_kv, first_row = block.first_row,
              row_count = block.row_count;
    const BlockMemory memory{shared_address(shared_memory), most_tiles};
    const Team team(tiles);
    const Shared shared = memory.of_warp(min(team.member(), tiles - 1), warp_index());
    const bool scale_early = scales_early(attention);

    const PackedRows rows(attention, arguments, length, first_row + team.member() * mod::kQueryTile,
                          row_count - 1, h_kv, group);
    const Surroundings around{attention, arguments, rows.row[0].place, length};
    Walk walk(attention,
              {length, h_kv * group, group, at, seen_by_all(rows.keys(), team), warp_index()}),
        ahead = walk;
    LoaderOfWarp<KeyTile, ValueTile> loader(attention, length, h_kv, walk.tile());
    loader.look_up(walk);
    loader.start(shared, walk, walk.tile());
    ahead.advance();
    loader.look_up(ahead);
    load_queries(block, tiles * mod::kQueryTile, [&](int row, int column) {
        return memory.queries(row / mod::kQueryTile).at(row % mod::kQueryTile, column);
    });
    commit_copies();
    loader.start(shared, ahead, walk.tile());
    commit_copies();
    clear_padding(shared);

    Softmax softmax;
    KeyValueScales scales(attention, length, h_kv);
    Output output = {};
    softmax.start(scale_early ? 1 : attention.scale);
    const ForwardStep step{around, softmax, scales, output, scale_early};
    wait_for_groups<1>();
    tell_team(walk, team);
    __syncthreads(); // all warps' pieces of the queries are there
    scales.apply_to_queries(shared.queries(), 0, team.first_warp() == 0);
    // Attends to the tiles of keys loaded by some warps of the team, starting with the `first`-th
    // warp after this one.
    const auto attend_to = [&](auto tiles, int first) {
        const auto loaded_by = [&](int i) {
            return team.size > 1 ? loaded_tiles[warp_index() + first + i] : loaded_of(walk);
        };
        step.attend<decltype(tiles)::kCount>(
            rows, shared.queries(), 0, walk.step(),
            [&](int i) {
                return TileHere{memory.of_warp(0, warp_index() + first + i),
                                loaded_by(i).tile * mod::kKeyTile};
            },
            [] {},
            [&](int i, int first_kv, int last_kv) {
                return loaded_by(i).is_full || rows.all_see(first_kv, last_kv);
            });
    };
    while (walk.has(-team.member())) {
        Walk next = ahead;
        next.advance();
        loader.look_up(next);
        int i = -team.member();
        const int end = i + team.size;
#pragma unroll 1
        for (; kTilesAtOnce > 1 && i + kTilesAtOnce <= end && walk.has(i + kTilesAtOnce - 1);
             i += kTilesAtOnce)
            attend_to(Tiles<kTilesAtOnce>{}, i);
#pragma unroll 1
        for (; i < end && walk.has(i); ++i)
            attend_to(Tiles<1>{}, i);
        team.sync(); // everyone has left these tiles, which make room for the next but one
        walk = ahead;
        ahead = next;
        tell_team(walk, team);
        loader.start(shared, ahead, walk.tile());
        commit_copies();
        wait_for_groups<1>();
        team.sync();
    }
    write_results(results_of(shared), softmax, output, scales.of_output());
    __syncthreads();
    store_rows(block, team.count(), [&](int row, int of_team) {
        const int tile = row / mod::kQueryTile;
        const Shared of_tile = memory.of_warp(tile, of_team * team.size + tile);
        return results_of(of_tile).at(row % mod::kQueryTile, 0);
    });
}

} // namespace sm80
