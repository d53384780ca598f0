// Two elements that lie side by side in shared memory, loaded at once.
#pragma once

#include "common/element.cuh"
#include "sm90/warpgroup.cuh"

namespace sm90 {

template <typename E> struct ElementPair {
    unsigned word;

    __device__ void load(unsigned from) { word = load_shared_word(from); }
    __device__ float first() const { return flexc_first(E{}, word); }
    __device__ float second() const { return flexc_second(E{}, word); }
};
template <> struct ElementPair<float> {
    float x[2];

    __device__ void load(unsigned from) { load_shared(from, x); }
    __device__ float first() const { return x[0]; }
    __device__ float second() const { return x[1]; }
};

} // namespace sm90
