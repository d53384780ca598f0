// In which order a warpgroup multiplies dS of a tile of queries for dk and dq, and what it does
// under these products. A step is the tile on its way: StepOfQueries in backward_sm90.cu.
#pragma once

#include "common/select.h"
#include "sm90/backward_score_order.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

// Everyone waits for dS of a tile, or where warpgroups alternate, the one whose turn it is.
struct EveryoneMeets {
    static __device__ void meet(unsigned, bool) { meet_at_d_scores(); }
};
struct OneWaits {
    static __device__ void meet(unsigned step, bool takes) {
        meet_at_d_scores(static_cast<int>(step), takes);
    }
};
using DScoresMeeting = Select<kAlternatesDq, OneWaits, EveryoneMeets>;

// Both warpgroups multiply a piece of dq.
struct MultipliesPieceOfDq {
    template <typename Step> static __device__ void multiply(const Step& step) {
        meet_at_d_scores();
        step.issue_dq();
        DvOrder::finish_late(step);
        step.issue_dk();
        step.hand_over_second_half();
        step.hand_over_sums();
        step.add_sums_in_turn();
        wait_for_wgmma<1>();
        step.finish_dq();
        step.look_ahead();
        wait_for_wgmma<0>();
        step.finish_dk();
    }
};

// Where warpgroups alternate, the one whose turn it is not.
struct LeavesDq {
    template <typename Step> static __device__ void multiply(const Step& step) {
        meet_at_d_scores(step.step, false);
        step.issue_dk();
        DvOrder::finish_late(step);
        step.hand_over_sums();
        step.look_ahead();
        wait_for_wgmma<0>();
        step.finish_dk();
    }
};

// The one whose turn it is multiplies all of dq: beside dk, or where that takes too many registers,
// behind it.
struct MultipliesDqBesideDk {
    template <typename Step> static __device__ void multiply(const Step& step) {
        step.issue_dk();
        DvOrder::finish_late(step);
        meet_at_d_scores(step.step, true);
        step.issue_dq();
        wait_for_wgmma<1>();
        step.finish_dk();
        step.hand_over_sums();
        step.add_sums();
        step.look_ahead();
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
        meet_at_d_scores(step.step, true);
        step.issue_dq();
        step.hand_over_sums();
        step.add_sums();
        step.look_ahead();
        wait_for_wgmma<0>();
        step.finish_dq();
    }
};

using DqInTurn = Select<kOverlapsSums, MultipliesDqBesideDk, MultipliesDqBehindDk>;

// The warpgroup asks whose turn it is when the tile's scores are done.
struct AsksForTurn {
    template <typename Step> static __device__ void multiply(const Step& step) {
        if (step.takes_query_gradient())
            DqInTurn::multiply(step);
        else
            LeavesDq::multiply(step);
    }
};

// Whether the warpgroup multiplies for dq, as far as a copy of the step's code knows.
enum class Turn { takes, leaves, unknown };
// Where much is computed for each element, one copy has all turns.
constexpr bool kAsksForTurn = mod::ScoreDerivative::kIsWrittenOnce && kAlternatesDq;
template <Turn kTurn>
using ProductOrder = Select<
    !kAlternatesDq, MultipliesPieceOfDq,
    Select<kTurn == Turn::takes, DqInTurn, Select<kTurn == Turn::leaves, LeavesDq, AsksForTurn>>>;

} // namespace sm90
