// A warp's rows meet a tile of keys and values: the forward loop's body, whichever rows these are.
#pragma once

#include "sm80/forward_mma.cuh"
#include "sm80/hidden_scores.cuh"
#include "sm80/key_value_scales.cuh"
#include "sm80/score_mod.cuh"
#include "sm80/softmax.cuh"

namespace sm80 {

struct ForwardStep {
    const Surroundings& around;
    Softmax& softmax;
    KeyValueScales& scales;
    Output& output;
    const bool scale_early;

    // queries: from warp_row on. from: where the tile is, at `step`. After the products come
    // find_rows(), and sees_all(first_kv, last_kv): whether nothing of these is known to be hidden.
    template <typename OwnRows, typename FindRows, typename SeesAll>
    __device__ void meet(const OwnRows& rows, const QueryTile& queries, int warp_row,
                         const Shared& from, int step, int first_kv, FindRows find_rows,
                         SeesAll sees_all) const {
        Scores scores;
        mma_qk(scores, queries, warp_row, from.keys(step));
        scales.apply_to_scores(scores, from, step);
        find_rows();
        if (scale_early) apply_score_mod(scores, around.attention.scale, around, rows, first_kv);
        const int last_kv = first_kv + mod::kKeyTile - 1;
        if (last_kv >= around.length.keys() || !sees_all(first_kv, last_kv))
            hide_scores(scores, around, rows, first_kv);
        softmax.update(scores, output);
        scales.apply_to_weights(scores, output, from, step);
        mma_pv(output, scores, from.values(step));
    }
};

} // namespace sm80
