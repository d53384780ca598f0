// Ping-pong of the forward's warpgroups: one computes softmax while another multiplies.
#pragma once

#include "sm90/forward_layout.cuh"

namespace sm90 {

// A ring of named barriers, one for each warpgroup. A warpgroup waits at its own before what only
// one may do at a time, and arrives at the next one's afterwards.
struct PingPongOrder {
    int warpgroup;

    __device__ explicit PingPongOrder(int index) : warpgroup(index) {
        if (mod::ForwardSchedule::kPingPong != mod::PingPong::none && index == kConsumers - 1)
            arrive(next(), 256);
    }
    __device__ void wait(mod::PingPong kind) const {
        if (mod::ForwardSchedule::kPingPong == kind)
            synchronize(1 + warpgroup, 256); // barrier 0 is __syncthreads()
    }
    __device__ void signal(mod::PingPong kind) const {
        if (mod::ForwardSchedule::kPingPong == kind) arrive(next(), 256);
    }
    __device__ void skip() const {
        if constexpr (mod::ForwardSchedule::kPingPong != mod::PingPong::none) {
            wait(mod::ForwardSchedule::kPingPong);
            signal(mod::ForwardSchedule::kPingPong);
        }
    }

  private:
    __device__ int next() const { return 1 + (warpgroup + 1) % kConsumers; }
};

} // namespace sm90
