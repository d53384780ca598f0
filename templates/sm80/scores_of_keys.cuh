// P and dS of a whole sequence, transposed: a warp has the scores of its own 16 keys, 16 queries at
// a time, in registers, from which they become operands of dk and dv.
#pragma once

#include "common/select.h"
#include "common/tile_range.cuh"
#include "sm80/backward_scores.cuh"
#include "sm80/own_row_statistics.cuh"

namespace sm80 {

constexpr int kStepRows = 16;                            // queries of a step, and a warp's keys
constexpr int kQuerySteps = mod::kQueryTile / kStepRows; // of a whole sequence
static_assert(mod::kQueryTile % kStepRows == 0 && mod::kKeyTile == kStepRows * mod::kWarps);

// The scores of a step: rows are keys, columns are queries.
struct StepScores : WarpResult<mod::kKeyTile, kStepRows, mod::kWarps, true> {
    static constexpr int kQueries = 2 * kColumns; // of a thread
    static constexpr int kElements = kRows * kQueries;

    // Returns the query of a thread's element, which are counted step after step and, in a step,
    // query after query.
    static __device__ int query_of_element(int i) {
        return i / kElements * kStepRows + query(i % kElements / kRows);
    }
    static __device__ int query(int i) { return column(i / 2) + i % 2; } // within the step
    __device__ float& of(int key, int query) { return at(key, query / 2, query % 2); }
};

__device__ inline int first_key_of_warp() { return StepScores::first_row(); }

// Returns a query, as the program sees it, without what P and dS need beside.
__device__ inline ScoreRow query_at(const Surroundings& around, int position) {
    const auto& [attention, arguments, place, length] = around;
    const int q = length.q_idx(position);
    return {mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q),
            q,
            position < length.queries(),
            0,
            0,
            0};
}
__device__ inline ScoreRow query_at(const Surroundings& around, const SharedRowStatistics& all,
                                    int position) {
    ScoreRow row = query_at(around, position);
    float statistics[4];
    all.load(statistics, position);
    row.reference_score = statistics[0];
    row.lse_log2 = statistics[1];
    row.delta = statistics[2];
    return row;
}

// The keys of a thread.
struct KeysOfThread {
    static constexpr int kCount = StepScores::kRows;
    ScoreColumn of[kCount];

    __device__ explicit KeysOfThread(const Surroundings& around) {
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            of[i] = read_column<false>(around, ScoreTile{}, StepScores::row(i));
    }
};

// Says of each of a thread's elements of a step whether it is visible. Masks that are more than a
// comparison are evaluated one query at a time: evaluated for all at once, they fill the registers.
struct ComparedInStep {
    __device__ ComparedInStep(const Surroundings&, const KeysOfThread&, int first_q) {}
    __device__ bool operator()(const Surroundings& around, int, const ScoreRow& query,
                               const ScoreColumn& key) const {
        return is_visible(around, query, key);
    }
};
struct BitsOfStep {
    unsigned bits = 0;

    __device__ BitsOfStep(const Surroundings& around, const KeysOfThread& keys, int first_q) {
#pragma unroll 1
        for (int i = 0; i < StepScores::kElements; i += keys.kCount) {
            const ScoreRow query = query_at(around, first_q + StepScores::query(i / keys.kCount));
#pragma unroll
            for (int key = 0; key < keys.kCount; ++key)
                bits |= static_cast<unsigned>(is_visible(around, query, keys.of[key])) << (i + key);
        }
    }
    __device__ bool operator()(const Surroundings&, int element, const ScoreRow&,
                               const ScoreColumn&) const {
        return (bits >> element & 1) != 0;
    }
};
struct AllOfStep {
    __device__ AllOfStep(const Surroundings&, const KeysOfThread&, int first_q) {}
    __device__ bool operator()(const Surroundings&, int, const ScoreRow&,
                               const ScoreColumn&) const {
        return true;
    }
};
using SeenInStep = Select<Mask::kIsComparison, ComparedInStep, BitsOfStep>;

// Whether everything is visible of the warp's keys and the queries of a step.
__device__ inline bool shows_step(const Surroundings& around, int first_q) {
    const int last_q = first_q + kStepRows - 1;
    const int first_kv = first_key_of_warp(), last_kv = first_kv + kStepRows - 1;
    return Mask::shows_all(around.place, false, first_q, last_q, first_kv, last_kv) &&
           last_q < around.length.queries() && last_kv < around.length.keys();
}
// The warps, of 16 keys each, that queries of a step may see.
__device__ inline TileRange warps_seen(const Surroundings& around, int first_q) {
    const int last_q = min(first_q + kStepRows, around.length.queries()) - 1;
    if (first_q > last_q) return {0, 0};
    return visible_tiles(around.place, around.length, first_q, last_q, kStepRows);
}

} // namespace sm80
