// Orders in which a warpgroup multiplies dS of a tile of queries for dk and dq, and what it does
// while these products run. A step is StepOfQueries of backward_sm90.cu.
#pragma once

#include "common/select.h"
#include "sm90/backward_score_order.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

// Who waits for dS of a tile: both warpgroups, or where they alternate, the one that computes dq.
struct BothWait {
    static __device__ void wait(unsigned, bool) { synchronize_d_scores(); }
};
struct OwnerWaits {
    static __device__ void wait(unsigned step, bool takes) {
        synchronize_d_scores(static_cast<int>(step), takes);
    }
};
using DScoresBarrier = Select<kAlternatesDq, OwnerWaits, BothWait>;

// Order of a kernel for gradients of buffers alone, where warps sum tiles at most.
struct MultipliesNothing {
    template <typename Step> static __device__ void multiply(const Step& step) {
        synchronize_d_scores();
        DvOrder::finish_late(step);
        step.hand_over_second_half();
        step.add_entries();
        step.hand_over_sums();
        step.add_sums_alternately();
        step.await_next();
        step.release_tile();
    }
};

// Order where each warpgroup computes a piece of dq.
struct MultipliesPieceOfDq {
    template <typename Step> static __device__ void multiply(const Step& step) {
        synchronize_d_scores();
        step.issue_dq();
        DvOrder::finish_late(step);
        step.issue_dk();
        step.hand_over_second_half();
        step.add_entries();
        step.hand_over_sums();
        step.add_sums_alternately();
        wait_for_wgmma<1>();
        step.finish_dq();
        step.await_next();
        wait_for_wgmma<0>();
        step.finish_dk();
    }
};

// Order of the warpgroup that does not compute dq of this tile, where warpgroups alternate.
struct MultipliesDkAlone {
    template <typename Step> static __device__ void multiply(const Step& step) {
        synchronize_d_scores(step.step, false);
        step.issue_dk();
        DvOrder::finish_late(step);
        step.hand_over_sums();
        step.await_next();
        wait_for_wgmma<0>();
        step.finish_dk();
    }
};

// Order of the warpgroup that computes all of dq, where warpgroups alternate: while dk's product
// runs, or if that takes too many registers, after it.
struct MultipliesDqBesideDk {
    template <typename Step> static __device__ void multiply(const Step& step) {
        step.issue_dk();
        DvOrder::finish_late(step);
        synchronize_d_scores(step.step, true);
        step.issue_dq();
        wait_for_wgmma<1>();
        step.finish_dk();
        step.hand_over_sums();
        step.add_sums();
        step.await_next();
        wait_for_wgmma<0>();
        step.finish_dq();
    }
};
struct MultipliesDqBehindDk {
    template <typename Step> static __device__ void multiply(const Step& step) {
        step.issue_dk();
        DvOrder::finish_late(step);
        wait_for_wgmma<0>();
        step.finish_dk();
        synchronize_d_scores(step.step, true);
        step.issue_dq();
        step.hand_over_sums();
        step.add_sums();
        step.await_next();
        wait_for_wgmma<0>();
        step.finish_dq();
    }
};

using MultipliesAllOfDq = Select<kOverlapsSums, MultipliesDqBesideDk, MultipliesDqBehindDk>;

// The warpgroup finds out whether it computes dq when the tile's scores are done.
struct MultipliesDqIfOwner {
    template <typename Step> static __device__ void multiply(const Step& step) {
        if (step.takes_query_gradient())
            MultipliesAllOfDq::multiply(step);
        else
            MultipliesDkAlone::multiply(step);
    }
};

// Which warpgroup computes dq, as far as a copy of the step's code knows.
enum class DqOwner { self, other, unknown };
// Where the code of an element is long, both warpgroups share one copy of it.
constexpr bool kFindsDqOwnerLate = mod::ScoreDerivative::kIsWrittenOnce && kAlternatesDq;
template <DqOwner kOwner>
using ProductOrder = Select<
    kAreAlone, MultipliesNothing,
    Select<!kAlternatesDq, MultipliesPieceOfDq,
           Select<kOwner == DqOwner::self, MultipliesAllOfDq,
                  Select<kOwner == DqOwner::other, MultipliesDkAlone, MultipliesDqIfOwner>>>>;

} // namespace sm90
