// Computes rows of requests with few queries by a warpgroup: 64 rows, of which each warp has a tile
// of 16, meet a tile of keys that all warps have loaded a part of. wgmma takes the keys of all
// warps from shared memory; the rest is as in few_by_warps.cuh.
#pragma once

#include "sm80/few_by_warps.cuh"
#include "sm90/few_key_tiles.cuh"

namespace sm90 {

static_assert(sm80::kBlockWarps == kFewWarps);

__device__ inline void attend_by_warpgroup(const sm80::FewBlock& block) {
    using namespace sm80;
    const auto& attention = block.attention;
    const SequenceLength& length = block.length;
    const int group = block.group, h_kv = block.h_kv, warp = warp_index();
    const Team team(kFewWarps);
    const bool has_rows = block.first_row + warp * mod::kQueryTile < block.row_count;
    const bool scale_early = scales_early(attention);
    const unsigned memory = few_memory(sm80::shared_address(shared_memory));
    const FewQueries queries{memory + kFewLayout.queries};

    const PackedRows rows(attention, block.arguments, length,
                          block.first_row + warp * mod::kQueryTile, block.row_count - 1, h_kv,
                          group);
    const Surroundings around{attention, block.arguments, rows.row[0].place, length};
    Walk walk(attention,
              {length, h_kv * group, group, block.at, seen_by_all(rows.keys(), team), warp}),
        ahead = walk;
    const FewKeyRows<mod::kHeadDim> keys(attention.k, length, h_kv);
    const FewKeyRows<mod::kHeadDimV> values(attention.v, length, h_kv);
    const FewKeyPlaces places(attention, length);
    // Tiles of the loop: keys and values of this step, then keys of the next.
    unsigned key_tile = memory, value_tile = memory + kFewLayout.tile_bytes,
             ahead_tile = memory + 2 * kFewLayout.tile_bytes;
    const auto own = [&](unsigned tile) {
        return FewKeyTile{tile + warp * mod::kKeyTile * kFewRowBytes};
    };
    const auto rows_left = [&](const Walk& at) {
        return at.is_done() ? 0 : length.keys() - at.tile() * mod::kKeyTile;
    };
    // Announces the warp's tile; a warp whose tiles have ended announces keys behind the last.
    const auto tell = [&] {
        if (lane_index() == 0)
            loaded_tiles[warp] = walk.is_done()
                                     ? LoadedTile{length.keys() / mod::kKeyTile + 1, false}
                                     : loaded_of(walk);
    };

    KeyPlace place = places.of(walk);
    load_queries(block, kFewRows, [&](int row, int column) { return queries.at(row, column); });
    keys.start(own(key_tile), place, rows_left(walk));
    commit_copies();
    values.start(own(value_tile), place, rows_left(walk));
    commit_copies();
    ahead.advance();
    place = places.of(ahead);
    keys.start(own(ahead_tile), place, rows_left(ahead));
    commit_copies();
    tell();

    Softmax softmax;
    KeyValueScales scales(attention, length, h_kv);
    Output output = {};
    softmax.start(scale_early ? 1 : attention.scale);
    const ForwardStep step{around, softmax, scales, output, scale_early};
#pragma unroll 1
    while (walk.has(-warp)) {
        Walk next = ahead;
        next.advance();
        const KeyPlace next_place = places.of(next);
        wait_for_groups<2>();
        meet_few_copies();
        Scores scores[kFewWarps];
        multiply_few_keys(scores, queries, FewKeyTile{key_tile});
        __syncthreads(); // everyone has left these keys, which make room for the next values
        values.start(own(key_tile), place, rows_left(ahead));
        commit_copies();
        if (has_rows)
            step.weigh(
                scores, rows, [&](int i) { return loaded_tiles[i].tile * mod::kKeyTile; },
                [&](int i, int first_kv, int last_kv) {
                    return loaded_tiles[i].is_full || rows.all_see(first_kv, last_kv);
                });
        wait_for_groups<2>();
        meet_few_copies();
        add_few_values(output, scores, FewKeyTile{value_tile});
        walk = ahead;
        ahead = next;
        place = next_place;
        __syncthreads(); // and these values, which make room for the keys of the next step but one
        tell();
        keys.start(own(value_tile), place, rows_left(ahead));
        commit_copies();
        const unsigned left = key_tile;
        key_tile = ahead_tile;
        ahead_tile = value_tile;
        value_tile = left;
    }
    wait_for_groups<0>();
    __syncthreads(); // results take the place of tiles
    const auto results = [&](int of_warp) { return Staging{memory + of_warp * Staging::kBytes}; };
    write_results(results(warp), softmax, output, scales.of_output());
    __syncthreads();
    store_rows(block, 1, [&](int row, int) {
        return results(row / mod::kQueryTile).at(row % mod::kQueryTile, 0);
    });
}

} // namespace sm90
