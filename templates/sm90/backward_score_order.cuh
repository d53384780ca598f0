// Orders in which a warpgroup computes P and dS of a tile of queries: after which of its products,
// and overlapped with which others.
#pragma once

#include "common/select.h"
#include "sm90/backward_mma.cuh"
#include "sm90/backward_scores.cuh"
#include "sm90/gradients/dense_bias.cuh"

namespace sm90 {

// A tile's state, by reference to variables of the caller: members of its own made several programs
// spill.
struct ScoreStep {
    const Shared& shared;
    const int warpgroup;
    const unsigned step;
    const int tile_query;
    const RowStatistics& statistics;
    ScoreGradients& gradients;
    GradientSums& sums;
    Scores &scores, &d_scores;
    Fragments &p, &d_fragments;
    QuerySums& query_sums;
    VisibleBits& visible_bits;

    __device__ void evaluate_mask() const {
        visible_bits = gradients.evaluate_mask_early(tile_query);
    }
    __device__ void compute_p(bool has_references) const {
        pin(scores);
        gradients.compute_p(scores, p, tile_query, statistics, has_references, visible_bits);
    }
    __device__ void pack_p() const { gradients.pack_p(p, scores); }
    __device__ void differentiate() const {
        gradients.differentiate(d_scores, scores, p, statistics);
    }
    __device__ void finish_d_scores() const {
        BiasGradient::wait(shared, warpgroup, step, 0);
        gradients.finish(d_scores, tile_query, sums, query_sums);
        BiasGradient::store(gradients.biases(), d_scores, 0);
        CopiedBias::release_after_d_scores(shared, step);
        to_fragments(d_fragments, d_scores);
    }
    __device__ void compute_p_and_d_scores() const {
        pin(scores);
        pin(d_scores);
        BiasGradient::wait(shared, warpgroup, step, 0);
        gradients.compute_p_and_ds(scores, d_scores, p, d_fragments, tile_query, statistics, sums,
                                   query_sums);
        sums.publish(shared, step);
    }
};

// When the mask is evaluated: while both products run, or before dP's product takes registers.
struct EvaluatesMaskUnderProducts {
    static __device__ void between_products(const ScoreStep&) {}
    static __device__ void under_both_products(const ScoreStep& step) { step.evaluate_mask(); }
};
struct EvaluatesMaskBetweenProducts {
    static __device__ void between_products(const ScoreStep& step) { step.evaluate_mask(); }
    static __device__ void under_both_products(const ScoreStep&) {}
};
using MaskOrder =
    Select<kEvaluatesMaskBetween, EvaluatesMaskBetweenProducts, EvaluatesMaskUnderProducts>;

// dv += P^T d_out. Nothing in a kernel for gradients of buffers alone.
struct ValueProductOfP {
    static constexpr int kGroups = 1; // of MMAs
    template <int kB, int kCount>
    static __device__ void issue(float (&dv)[kCount], Fragments& p, unsigned d_out) {
        pin(dv);
        pin(p);
        fence_wgmma();
        issue_sums<kB>(dv, p, d_out);
        commit_wgmma();
    }
    template <int kPending, int kCount>
    static __device__ void wait(float (&dv)[kCount], Fragments& p) {
        wait_for_wgmma<kPending>();
        pin(dv);
        pin(p);
    }
};
struct NoValueProduct {
    static constexpr int kGroups = 0;
    template <int, int kCount>
    static __device__ void issue(float (&)[kCount], Fragments&, unsigned) {}
    template <int, int kCount> static __device__ void wait(float (&)[kCount], Fragments&) {}
};
using ValueProduct = Select<kAreAlone, NoValueProduct, ValueProductOfP>;

// When the product of dv is waited for: while dk's product runs, or before dS is complete.
struct FinishesDvLate {
    template <typename Step> static __device__ void finish_early(const Step&) {}
    template <typename Step> static __device__ void finish_late(const Step& step) {
        step.template finish_dv<1>();
    }
};
struct FinishesDvEarly {
    template <typename Step> static __device__ void finish_early(const Step& step) {
        step.template finish_dv<0>();
    }
    template <typename Step> static __device__ void finish_late(const Step&) {}
};
using DvOrder = Select<kFinishesDvEarly, FinishesDvEarly, FinishesDvLate>;

// P is computed while dP's product runs, dS while dv's product runs.
struct ComputesUnderProducts {
    static __device__ void before_dv(const ScoreStep& step, bool has_references) {
        wait_for_wgmma<1>();
        step.compute_p(has_references);
        step.pack_p();
    }
    template <typename Step> static __device__ void under_dv(const Step& step) {
        wait_for_wgmma<ValueProduct::kGroups>();
        pin(step.d_scores);
        step.differentiate();
        DvOrder::finish_early(step);
        step.finish_d_scores();
    }
};

// P is multiplied with dP before dv's product, in the registers that it leaves as it is packed.
struct DifferentiatesBeforeDv {
    static __device__ void before_dv(const ScoreStep& step, bool has_references) {
        wait_for_wgmma<1>();
        step.compute_p(has_references);
        wait_for_wgmma<0>();
        pin(step.d_scores);
        step.pack_p();
        step.differentiate();
    }
    template <typename Step> static __device__ void under_dv(const Step& step) {
        DvOrder::finish_early(step);
        step.finish_d_scores();
    }
};

// P and dS are computed after both products.
struct ComputesAtOnce {
    static __device__ void before_dv(const ScoreStep& step, bool) {
        wait_for_wgmma<0>();
        step.compute_p_and_d_scores();
    }
    template <typename Step> static __device__ void under_dv(const Step&) {}
};

using ScoreOrder =
    Select<kAtOnce, ComputesAtOnce,
           Select<kDifferentiatesFirst, DifferentiatesBeforeDv, ComputesUnderProducts>>;

} // namespace sm90
