// The body of the forward loop: a warp's rows attend to a tile of keys and values.
#pragma once

#include "sm80/forward_mma.cuh"
#include "sm80/hidden_scores.cuh"
#include "sm80/key_value_scales.cuh"
#include "sm80/score_mod.cuh"
#include "sm80/softmax.cuh"

namespace sm80 {

// The address of a tile of keys in shared memory, and the position of its first key.
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

    // Attends to tiles tile_at(0), ..., tile_at(kTiles - 1) at once, so that their products and
    // shuffles overlap. warp_row: the warp's first row in `queries`. find_rows() is called after
    // the products of Q and K. sees_all(tile, first_kv, last_kv): whether nothing of these keys can
    // be hidden.
    template <int kTiles, typename OwnRows, typename TileAt, typename FindRows, typename SeesAll>
    __device__ void attend(const OwnRows& rows, const QueryTile& queries, int warp_row, int step,
                           TileAt tile_at, FindRows find_rows, SeesAll sees_all) const {
        // With one tile, found once; with several, computed again at each use to save registers.
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

    // Replaces products by softmax weights, and rescales output and sums. first_of(tile): its first
    // key.
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
