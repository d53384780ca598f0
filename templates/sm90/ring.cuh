// Rings of stages in shared memory, which are full or empty by barriers.
#pragma once

#include "sm90/barrier.cuh"

namespace sm90 {

// A ring between producers and consumers: each stage is full when its bytes have arrived, and empty
// when every consumer has left it.
template <int kStages_, int kBytes_> struct Stages {
    static constexpr int kStages = kStages_, kBytes = kBytes_;
    static constexpr int kBarrierBytes = 2 * 8 * kStages;
    unsigned memory, barriers;

    __device__ unsigned at(int stage) const { return memory + stage * kBytes; }
    __device__ Barrier full(int stage) const { return {barriers + 8 * stage}; }
    __device__ Barrier empty(int stage) const { return {barriers + 8 * (kStages + stage)}; }
    __device__ void initialise(int producers, int consumers) const {
        for (int i = 0; i < kStages; ++i) {
            full(i).initialise(producers);
            empty(i).initialise(consumers);
        }
    }
};

// A position in a ring; the parity flips with each round.
template <typename S> struct Position {
    int stage = 0;
    unsigned parity = 0;

    __device__ void advance() {
        if (++stage == S::kStages) {
            stage = 0;
            parity ^= 1;
        }
    }
};

} // namespace sm90
