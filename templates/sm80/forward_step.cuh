// A warp's rows meet a tile of keys and values: the forward loop's body, whichever rows these are.
#pragma once

#include "sm80/forward_mma.cuh"
#include "sm80/hidden_scores.cuh"
#include "sm80/key_value_scales.cuh"
#include "sm80/score_mod.cuh"
#include "sm80/softmax.cuh"

namespace sm80 {

// Where a tile is in shared memory, and its first key.
struct TileHere {
    Shared from;
    int first_kv;
};

struct ForwardStep {
    const Surroundings& around;
    Softmax& softmax;
    KeyValueScales& scales;
    Output& output;
    const bool scale_early;

    // Tiles tile_at(0), ... at once, whose products and shuffles overlap. queries: from warp_row
    // on. After the products come find_rows(), and sees_all(tile, first_kv, last_kv): whether
    // nothing of these is known to be hidden.
    template <int kTiles, typename OwnRows, typename TileAt, typename FindRows, typename SeesAll>
    __device__ void meet(const OwnRows& rows, const QueryTile& queries, int warp_row, int step,
                         TileAt tile_at, FindRows find_rows, SeesAll sees_all) const {
        // Found once where there is one, and anew by each use where registers hold several tiles.
        const TileHere first = tile_at(0);
        const auto tile = [&](int i) { return kTiles == 1 ? first : tile_at(i); };
        Scores scores[kTiles];
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
            mma_qk(scores[i], queries, warp_row, tile(i).from.keys(step));
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
            scales.apply_to_scores(scores[i], tile(i).from, step);
        find_rows();
        weigh(scores, rows, [&](int i) { return tile(i).first_kv; }, sees_all);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            scales.apply_to_weights(scores[i], output, tile(i).from, step);
            mma_pv(output, scores[i], tile(i).from.values(step));
        }
    }

    // Products become weights, which output and sums so far follow. first_of(tile): its first key.
    template <int kTiles, typename OwnRows, typename FirstOf, typename SeesAll>
    __device__ void weigh(Scores (&scores)[kTiles], const OwnRows& rows, FirstOf first_of,
                          SeesAll sees_all) const {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
            const int first_kv = first_of(i), last_kv = first_kv + mod::kKeyTile - 1;
            if (scale_early)
                apply_score_mod(scores[i], around.attention.scale, around, rows, first_kv);
            if (last_kv >= around.length.keys() || !sees_all(i, first_kv, last_kv))
                hide_scores(scores[i], around, rows, first_kv);
        }
        softmax.update(scores, output);
    }
};

} // namespace sm80
