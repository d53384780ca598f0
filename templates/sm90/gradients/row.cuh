// Adds gradients of buffers that follow from sums over whole rows of the score matrix, in kernels
// that pass over queries.
#pragma once

#include "common/math.cuh"
#include "common/place.cuh"
#include "sm80/tile.cuh"
#include "sm90/warp_additions.cuh"

namespace sm90 {

// Calls visit(element) with an element of a query that stands for its whole row.
template <typename Visit>
__device__ inline void visit_row(const AttentionArguments& attention,
                                 const mod::Arguments& arguments, const SequenceLength& length,
                                 int h, int row, Visit visit_element) {
    const int b = length.b();
    const HeadPlace place(attention, arguments, b * attention.heads + h);
    const int q = row + static_cast<int>(length.q_offset());
    const mod::Row of_row = mod::at_row(arguments, place.launch, place.head, b, h, place.h_kv, q);
    visit_element(mod::At{arguments, place.launch, place.head, of_row, mod::Column{}, b, h,
                          place.h_kv, q, 0});
}

__device__ inline bool sees_anything(const AttentionArguments& attention,
                                     const SequenceLength& length, int h, int row) {
    return *sm80::query_plane<float>(attention.lse, length, h).at(row, 0) != negative_infinity();
}

// Returns the sum of d loss / d modified score over a row, without what a sink takes: it is d_lse,
// since P sum to 1 whatever is added to all scores of the row.
__device__ inline float row_sum(const AttentionArguments& attention, const SequenceLength& length,
                                int h, int row) {
    if (attention.d_lse.data == nullptr || !sees_anything(attention, length, h, row)) return 0;
    return *sm80::query_plane<float>(attention.d_lse, length, h).at(row, 0);
}

// Called by all lanes of a warp. sum: that of the gradients of a row's modified scores.
__device__ inline void add_row_gradients(const mod::At& at, float sum) {
#pragma unroll
    for (int gradient = 0; gradient < mod::kGradients; ++gradient)
        add_by_warp(mod::ReadGradients::address(at, gradient),
                    sum == 0 ? 0 : mod::row_partial(at, gradient) * sum);
}

} // namespace sm90
