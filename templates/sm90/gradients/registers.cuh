// Sums of gradients of buffers that consumer threads keep, and how an element is added to that of
// each read.
#pragma once

#include "common/select.h"
#include "sm90/gradients/bias_beside.cuh"
#include "sm90/gradients/dense_bias.cuh"
#include "sm90/gradients/element.cuh"
#include "sm90/gradients/entries.cuh"
#include "sm90/gradients/head.cuh"
#include "sm90/gradients/key.cuh"
#include "sm90/gradients/query.cuh"
#include "sm90/gradients/terms.cuh"
#include "sm90/gradients/weighted_tile.cuh"

namespace sm90 {

// Sums that a thread keeps while the queries of a head pass by.
struct GradientSums : WeightedTile, Entries {
    HeadSums head;
    KeySums key;
    // Of one tile of queries.
    Select<mod::TermSums::kExist, TermElements, NoTermElements> terms;
};
// What an element is added to: these sums, and those for a tile of queries.
struct TileGradients {
    GradientSums& registers;
    QuerySums& queries;
    const TileBiases& biases;
};

// Adds one element's part to every gradient. kIsFinite: no partial is infinite or NaN where
// d_modified is 0.
template <bool kIsFinite>
__device__ inline void add_element(const mod::At& at, const mod::Joint& joint, float d_modified,
                                   int key, int j, TileGradients sums) {
    visit_gradients([&](auto gradient) {
        constexpr int kGradient = decltype(gradient)::kValue;
        // A hidden element adds nothing, even if its partial is infinite or NaN.
        const bool adds = kIsFinite || mod::ReadGradients::is_finite(kGradient) || d_modified != 0;
        const float d_read = adds ? joint.partial[kGradient] * d_modified : 0;
        decltype(gradient)::Sum::add(kGradient, d_read, at, key, j, sums);
    });
}

} // namespace sm90
