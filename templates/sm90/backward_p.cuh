// Computes P from products of keys and queries. A class for each form of score, with one interface,
// that of PlainP.
#pragma once

#include "common/math.cuh"
#include "common/select.h"
#include "sm90/backward_row_statistics.cuh"
#include "sm90/backward_tile_elements.cuh"
#include "sm90/pack.cuh"

namespace sm90 {

// P of programs without a score mod.
class PlainP : public TileElements {
    // Others have no register for the answer, which they wait for when they need it.
    static constexpr bool kAsksEarly = !mod::kHasScoreMod && mod::kQueryTile == 64;

  public:
    using TileElements::TileElements;

    // Whether the tile has references, asked while products run. False where compute() asks.
    __device__ bool has_references(const RowStatistics& statistics) const {
        if (!kAsksEarly) return false;
        return __any_sync(0xffffffffu, statistics.have_references(first_query()));
    }
    // Turns products into P.
    __device__ void compute(Scores& scores, Fragments&, int&, const RowStatistics& statistics,
                            bool has_references) const {
        exponentiate(scores, statistics, has_references, attention_.scale * kLog2E);
    }
    // Sets hidden elements of the P that compute() has packed to zero.
    static __device__ void hide_packed(Fragments&, const VisibleBits&) {}
    // Packs P as the left operand of dv's product.
    static __device__ void pack_p(Fragments& p, const Scores& scores) { to_fragments(p, scores); }

  protected:
    // Turns modified scores into P; those that are too large for one float become relative to their
    // references first.
    __device__ void exponentiate(Scores& scores, const RowStatistics& statistics,
                                 bool has_references, float factor) const {
        if (kAsksEarly ? has_references : statistics.have_references(first_query()))
            subtract_references(scores, statistics);
#pragma unroll
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            float lse_log2[2];
            statistics.load(kRowLseLog2, first_query(), pair, lse_log2);
#pragma unroll
            for (int side = 0; side < 2; ++side)
#pragma unroll
                for (int key = 0; key < 2; ++key) {
                    float& score = scores[accumulator(key, 2 * pair + side)];
                    score = exp2_fast(fmaf(score, factor, -lse_log2[side]));
                }
        }
    }

  private:
    __device__ void subtract_references(Scores& scores, const RowStatistics& statistics) const {
        visit_statistic(statistics, kRowReference,
                        [&](int i, int, float reference) { scores[i] -= reference; });
    }
};

// P of programs with a score mod.
class ModifiedP : public PlainP {
  public:
    using PlainP::PlainP;

    __device__ void compute(Scores& scores, Fragments&, int& tile_query,
                            const RowStatistics& statistics, bool has_references) const {
        SumsAtOnce sums;
#pragma unroll
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            if (ends_before(pair, tile_query)) break;
            tile_query = again_for(pair, tile_query);
            find_sums(sums, tile_query, pair, [&](int i) { return scores[i] * attention_.scale; });
            PairReads reads;
            load(reads, pair);
#pragma unroll
            for (int j = 2 * pair; j < 2 * pair + 2; ++j)
                visit(tile_query, j, reads, [&](int key, int i, const mod::At& at) {
                    scores[i] =
                        mod::joint(sums.given(at, key, j), scores[i] * attention_.scale).score;
                });
        }
        exponentiate(scores, statistics, has_references, kLog2E);
    }
};

// Packs accumulator i of a key: the first of two waits in `even` for the second.
__device__ inline void gather(Fragments& to, float (&even)[2], float x, int key, int i) {
    if (i % 2 == 0)
        even[key] = x;
    else
        to[i / 8][i / 2 % 4] = pack(mod::Element{}, even[key], x);
}

// Returns P of a modified score that is relative to its row's reference.
__device__ inline float p_of(float relative_score, float lse_log2) {
    return exp2_fast(fmaf(relative_score, kLog2E, -lse_log2));
}

// P of modified scores, multiplied by their derivatives at once: accumulators hold the product of
// both for dS, and P alone is packed for dv.
class FoldedP : public TileElements {
  public:
    using TileElements::TileElements;

    static __device__ bool has_references(const RowStatistics&) { return false; }
    __device__ void compute(Scores& scores, Fragments& p, int& tile_query,
                            const RowStatistics& statistics, bool) const {
        fold<References>(scores, p, tile_query, statistics, [&](int) { return first_query(); });
    }
    static __device__ void hide_packed(Fragments& p, const VisibleBits& visible_bits) {
        hide(p, visible_bits);
    }
    static __device__ void pack_p(Fragments&, const Scores&) {}

  protected:
    // References of two queries, to which their scores are relative; zero in most tiles.
    struct References {
        float of[2];
        __device__ void load(const RowStatistics& statistics, int first, int pair) {
            statistics.load(kRowReference, first, pair, of);
        }
        __device__ float relative(float score, int side) const { return score - of[side]; }
    };
    struct NoReferences {
        __device__ void load(const RowStatistics&, int, int) {}
        __device__ float relative(float score, int) const { return score; }
    };

    // first(pair) returns the thread's first query.
    template <typename Reference, typename First>
    __device__ void fold(Scores& scores, Fragments& p, int& tile_query,
                         const RowStatistics& statistics, First first) const {
        SumsAtOnce sums;
#pragma unroll
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            if (ends_before(pair, tile_query)) break;
            tile_query = again_for(pair, tile_query);
            find_sums(sums, tile_query, pair, [&](int i) { return scores[i] * attention_.scale; });
            const int query = first(pair);
            float lse_log2[2], even[2];
            Reference references;
            statistics.load(kRowLseLog2, query, pair, lse_log2);
            references.load(statistics, query, pair);
            PairReads reads;
            load(reads, pair);
#pragma unroll
            for (int side = 0; side < 2; ++side)
                visit(tile_query, 2 * pair + side, reads, [&](int key, int i, const mod::At& at) {
                    const mod::Joint joint = mod::joint(sums.given(at, key, 2 * pair + side),
                                                        scores[i] * attention_.scale);
                    const float p_value =
                        p_of(references.relative(joint.score, side), lse_log2[side]);
                    // A weight of zero gives zero, even if the derivative is infinite or NaN.
                    scores[i] = p_value == 0 ? 0 : p_value * joint.d_score;
                    gather(p, even, p_value, key, i);
                });
        }
    }
};

// The same, with separate code for tiles that have references: usual ones keep no registers for
// them.
class FoldedPApart : public FoldedP {
  public:
    using FoldedP::FoldedP;

    __device__ void compute(Scores& scores, Fragments& p, int& tile_query,
                            const RowStatistics& statistics, bool) const {
        if (statistics.have_references(first_query()))
            fold<References>(scores, p, tile_query, statistics,
                             [&](int pair) { return first_query() + zero_after(scores, pair); });
        else
            fold<NoReferences>(scores, p, tile_query, statistics,
                               [&](int) { return first_query(); });
    }

  private:
    // Returns zero, computed from P of the pair before this one. Without it, the compiler would
    // begin the branch that only few tiles take for all pairs at once, which spills.
    __device__ int zero_after(const Scores& scores, int pair) const {
        if (pair == 0) return 0;
        const int never_negative = attention_.q_len;
        return __float_as_int(scores[accumulator(1, 2 * pair - 1)]) & (never_negative >> 31);
    }
};

using ComputedP = Select<kFolds, Select<kSaves.subtracts_apart, FoldedPApart, FoldedP>,
                         Select<mod::kHasScoreMod, ModifiedP, PlainP>>;

} // namespace sm90
