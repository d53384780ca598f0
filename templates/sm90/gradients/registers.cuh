// What the threads that multiply keep of gradients of buffers, and how each read's is added to it.
#pragma once

#include "sm90/gradients/dense_bias.cuh"
#include "sm90/gradients/element.cuh"
#include "sm90/gradients/head.cuh"
#include "sm90/gradients/key.cuh"
#include "sm90/gradients/query.cuh"

namespace sm90 {

// While the queries of a head pass by.
struct GradientSums {
    HeadSums head;
    KeySums key;
};
// What is summed for a tile of queries besides.
struct TileGradients {
    GradientSums& registers;
    QuerySums& queries;
    const TileBiases& biases;
};

// One element's part of every gradient. kIsFinite: whatever the partials are.
template <bool kIsFinite>
__device__ inline void add_element(const mod::At& at, const mod::Joint& joint, float d_modified,
                                   int key, int j, TileGradients sums) {
    visit_gradients([&](auto gradient) {
        constexpr int kGradient = decltype(gradient)::kValue;
        // What a hidden element's partial may be is nobody's business.
        const bool adds = kIsFinite || mod::ReadGradients::is_finite(kGradient) || d_modified != 0;
        const float d_read = adds ? joint.partial[kGradient] * d_modified : 0;
        decltype(gradient)::Sum::add(kGradient, d_read, at, key, j, sums);
    });
}

} // namespace sm90
