// PingPong of the forward's warpgroups.
#pragma once

#include "sm90/forward_layout.cuh"

namespace sm90 {

// Whose turn it is: a ring of named barriers, each with one warpgroup that waits and one that
// arrives.
struct PingPongOrder {
    int warpgroup;

    __device__ explicit PingPongOrder(int index) : warpgroup(index) {
        if (mod::ForwardSchedule::kPingPong != mod::PingPong::none && index == kConsumers - 1)
            arrive(next(), 256);
    }
    __device__ void take(mod::PingPong kind) const {
        if (mod::ForwardSchedule::kPingPong == kind)
            synchronize(1 + warpgroup, 256); // barrier 0 is the block's
    }
    __device__ void pass(mod::PingPong kind) const {
        if (mod::ForwardSchedule::kPingPong == kind) arrive(next(), 256);
    }
    __device__ void skip() const {
        if constexpr (mod::ForwardSchedule::kPingPong != mod::PingPong::none) {
            take(mod::ForwardSchedule::kPingPong);
            pass(mod::ForwardSchedule::kPingPong);
        }
    }

  private:
    __device__ int next() const { return 1 + (warpgroup + 1) % kConsumers; }
};

} // namespace sm90
