// Turns of the forward's warpgroups.
#pragma once

#include "sm90/forward_layout.cuh"

namespace sm90 {

// Whose turn it is: a ring of named barriers, each with one warpgroup that waits and one that
// arrives.
struct Turn {
    int warpgroup;

    __device__ explicit Turn(int index) : warpgroup(index) {
        if (mod::kTurns != mod::Turns::none && index == kConsumers - 1) arrive(next(), 256);
    }
    __device__ void take(mod::Turns kind) const {
        if (mod::kTurns == kind) synchronize(1 + warpgroup, 256); // barrier 0 is the block's
    }
    __device__ void pass(mod::Turns kind) const {
        if (mod::kTurns == kind) arrive(next(), 256);
    }
    __device__ void skip() const {
        if constexpr (mod::kTurns != mod::Turns::none) {
            take(mod::kTurns);
            pass(mod::kTurns);
        }
    }

  private:
    __device__ int next() const { return 1 + (warpgroup + 1) % kConsumers; }
};

} // namespace sm90
