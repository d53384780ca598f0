// Computes dS from P and products of d_out and values, and the gradients of buffers that threads
// sum beside it. A class for each way, with one interface, that of GradientsOfP.
#pragma once

#include "common/select.h"
#include "sm90/backward_p.cuh"
#include "sm90/gradients/registers.cuh"

namespace sm90 {

// Factors of dP: P as it was computed, or in 16 bits, as it was packed.
struct FactorsOfFloats {
    static __device__ float of(const Scores& factors, const Fragments&, int i, int) {
        return factors[i];
    }
};
struct FactorsOfFragments {
    static __device__ float of(const Scores&, const Fragments& fragments, int i, int side) {
        const unsigned word = fragments[i / 8][i / 2 % 4];
        return side == 0 ? flexc_first(mod::Element{}, word) : flexc_second(mod::Element{}, word);
    }
};
using Factors = Select<kKeepsFloats, FactorsOfFloats, FactorsOfFragments>;

// Where derivatives are one, or folded into P, gradients of modified scores are those of scores.
class GradientsOfP : public ComputedP {
  public:
    using ComputedP::ComputedP;

    __device__ QuerySummation summation(const Shared& shared) const {
        return {length_, arguments_, place_, shared};
    }

    // Turns products into P, and hidden elements into zero.
    __device__ void compute_p(Scores& scores, Fragments& p, int tile_query,
                              const RowStatistics& statistics, bool has_references,
                              VisibleBits visible_bits) const {
        compute(scores, p, tile_query, statistics, has_references);
        if (kSaves.evaluates_mask_early ? visible_bits.hides_any() : hides_any(tile_query)) {
            if (!kSaves.evaluates_mask_early) evaluate_mask(visible_bits, tile_query);
            hide(scores, visible_bits);
            hide_packed(p, visible_bits);
        }
    }

    // Turns dp, products of d_out and values, into gradients of modified scores, by what
    // compute_p() left: `factors`, or `fragments` of them.
    __device__ void differentiate(Scores& dp, const Scores& factors, const Fragments& fragments,
                                  const RowStatistics& statistics) const {
        visit_statistic(statistics, kRowDelta, [&](int i, int side, float delta) {
            dp[i] = Factors::of(factors, fragments, i, side) * (dp[i] - delta);
        });
    }

    // Turns gradients of modified scores into those of scores, and adds them to those of buffers.
    __device__ void finish(Scores&, int, GradientSums&, QuerySums&) const {}
    // Does all three at once, from products to fragments.
    __device__ void compute_p_and_ds(const Scores&, const Scores&, Fragments&, Fragments&, int,
                                     const RowStatistics&, GradientSums&, QuerySums&) const {}

    // Adds up what is left of a tile of queries when its products have been issued.
    __device__ void finish_tile(GradientSums&, int) const {}

    // Adds the sums over the queries of this head to memory.
    __device__ void flush(GradientSums& sums) const {
        visit_gradients(
            [&](auto gradient) { decltype(gradient)::Sum::flush(gradient.kValue, sums, *this); });
    }

  protected:
    template <bool kIsFinite = false>
    __device__ void add_gradients(const mod::At& at, const mod::Joint& joint, float d_modified,
                                  int key, int j, GradientSums& sums, QuerySums& query_sums) const {
        add_element<kIsFinite>(at, joint, d_modified, key, j, {sums, query_sums, biases()});
    }
};

struct DerivativeOfOne {
    static __device__ float d_score(float d_modified, const mod::Joint&) { return d_modified; }
};
struct AnyDerivative {
    static __device__ float d_score(float d_modified, const mod::Joint& joint) {
        return d_modified == 0 ? 0 : d_modified * joint.d_score;
    }
};
using Derivative = Select<mod::ScoreDerivative::kIsOne, DerivativeOfOne, AnyDerivative>;

// Gradients where derivatives and partials do not depend on the score.
class GradientsOfPositions : public GradientsOfP {
  public:
    using GradientsOfP::GradientsOfP;

    __device__ void finish(Scores& d_scores, int tile_query, GradientSums& sums,
                           QuerySums& query_sums) const {
        PairReads reads;
        SumsAtOnce pair_sums;
        sums.use_weighted(weighted_tile());
#pragma unroll
        for (int j = 0; j < kQueries; ++j) {
            if (j % 2 == 0) {
                if (ends_before(j / 2, tile_query)) {
                    sums.clear_weighted_from(j);
                    break;
                }
                tile_query = again_for(j / 2, tile_query);
                find_sums<kHoldsBiases>(pair_sums, tile_query, j / 2, [](int) { return 0; });
                load<kHoldsBiases>(reads, j / 2);
            }
            visit(tile_query, j, reads, [&](int key, int i, const mod::At& at) {
                const mod::Joint joint = mod::joint(pair_sums.given(at, key, j), 0);
                const float d_modified = d_scores[i];
                add_gradients(at, joint, d_modified, key, j, sums, query_sums);
                d_scores[i] = Derivative::d_score(d_modified, joint);
            });
        }
    }
};

// Gradients where partials depend on the score: all is done at once, after both products.
class GradientsOfScores : public GradientsOfP {
  public:
    using GradientsOfP::GradientsOfP;

    __device__ void compute_p_and_ds(const Scores& scores, const Scores& dp, Fragments& p,
                                     Fragments& d_scores, int tile_query,
                                     const RowStatistics& statistics, GradientSums& sums,
                                     QuerySums& query_sums) const {
        unsigned visible[2] = {~0u, ~0u};
        const bool hides = hides_any(tile_query);
        if (hides) find(visible, tile_query);
        if (mod::ScoreDerivative::kIsHiddenByMaskAlone && !hides)
            change_all<true>(scores, dp, p, d_scores, tile_query, statistics, visible, sums,
                             query_sums);
        else
            change_all<false>(scores, dp, p, d_scores, tile_query, statistics, visible, sums,
                              query_sums);
        query_sums.exchange_early();
    }

  private:
    // Returns tile_query, computed from dS of the pairs before the last four. Without it, compilers
    // load what all pairs read before they store elements of a gradient, which spills.
    __device__ int after(const Fragments& d_scores, int pair, int tile_query) const {
        constexpr int kAhead = 4;
        if (pair < kAhead || pair % 2 != 0) return tile_query;
        const int never_negative = attention_.q_len;
        const int fragment = static_cast<int>(d_scores[(pair - kAhead) / 2][0]);
        return tile_query + (fragment & never_negative >> 31);
    }
    // kSeesAll: nothing is hidden, nor does a weight of zero meet what is infinite or NaN.
    template <bool kSeesAll>
    __device__ void change_all(const Scores& scores, const Scores& dp, Fragments& p,
                               Fragments& d_scores, int tile_query, const RowStatistics& statistics,
                               const unsigned (&visible)[2], GradientSums& sums,
                               QuerySums& query_sums) const {
        SumsAtOnce pair_sums;
        sums.use_weighted(weighted_tile());
#pragma unroll
        for (int pair = 0; pair < kQueries / 2; ++pair) {
            tile_query = again_for(pair, tile_query);
            if constexpr (kHasWeightedTile) tile_query = after(d_scores, pair, tile_query);
            find_sums(pair_sums, tile_query, pair,
                      [&](int i) { return scores[i] * attention_.scale; });
            float lse_log2[2], reference[2], delta[2], even[2], d_even[2];
            statistics.load(kRowLseLog2, first_query(), pair, lse_log2);
            statistics.load(kRowReference, first_query(), pair, reference);
            statistics.load(kRowDelta, first_query(), pair, delta);
            PairReads reads;
            load(reads, pair);
#pragma unroll
            for (int side = 0; side < 2; ++side) {
                const int j = 2 * pair + side;
                visit(tile_query, j, reads, [&](int key, int i, const mod::At& at) {
                    const mod::Joint joint = mod::joint(pair_sums.given(at, key, j),
                                                        scores[i] * attention_.scale);
                    float p_value = p_of(joint.score - reference[side], lse_log2[side]);
                    if (!kSeesAll && !(visible[key] >> j & 1)) p_value = 0;
                    float d_modified = p_value * (dp[i] - delta[side]);
                    if (!kSeesAll && p_value == 0) d_modified = 0;
                    add_gradients<kSeesAll>(at, joint, d_modified, key, j, sums, query_sums);
                    sums.terms.keep(i, pair_sums, key, j, d_modified);
                    gather(p, even, p_value, key, i);
                    const float d_score =
                        !kSeesAll && d_modified == 0 ? 0 : d_modified * joint.d_score;
                    sums.keep(at, d_score, key, j);
                    gather(d_scores, d_even, d_score, key, i);
                });
            }
        }
    }
};

// The same, with gradients of the terms of sums. They are added up when the products have been
// issued: before, P and dS take registers.
class GradientsOfTerms : public GradientsOfScores {
  public:
    __device__ GradientsOfTerms(const KernelArguments& attention, const mod::Arguments& arguments,
                                const HeadPlace& place, TileLength length, int tile_key,
                                int warp_key, int lane)
        : GradientsOfScores(attention, arguments, place, length, tile_key, warp_key, lane) {
        clear_terms();
    }

    __device__ void finish_tile(const GradientSums& sums, int tile_query) const {
        sum_terms(sums.terms, OfTile{*this, tile_query});
    }
    __device__ void flush(GradientSums& sums) const {
        GradientsOfScores::flush(sums);
        flush_terms(OfTile{*this, 0});
    }

  private:
    // The elements of a tile, as TermSummation visits them.
    struct OfTile {
        const GradientsOfTerms& of;
        const int tile_query;

        template <typename Visit> __device__ void visit_tile(Visit visit_element) const {
#pragma unroll
            for (int j = 0; j < kQueries; ++j)
                of.visit(tile_query, j, PairReads{},
                         [&](int key, int i, const mod::At& at) { visit_element(key, j, i, at); });
        }
        __device__ bool has_key(int key) const { return of.has_key(key); }
        __device__ mod::At at_key(const mod::Row& row, int key) const {
            return of.at_key(row, key);
        }
        template <typename Visit> __device__ void visit_query(int query, Visit visit_at) const {
            sm90::visit_query(of.arguments_, of.place_, of.length_, tile_query + query, visit_at);
        }
    };
};

using ScoreGradients = Select<mod::TermSums::kExist, GradientsOfTerms,
                              Select<kAtOnce, GradientsOfScores,
                                     Select<kFolds || (!mod::ReadGradients::kComeFromElements &&
                                                       mod::ScoreDerivative::kIsOne),
                                            GradientsOfP, GradientsOfPositions>>>;

} // namespace sm90
