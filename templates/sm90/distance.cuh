// Vectors by the distance q - kv: the entry at padded(KV) is of distance 0.
#pragma once

#include "common/exact_sum.cuh"
#include "common/place.cuh"

namespace sm90 {

constexpr int kPaddedRows = 128; // queries of a head, and keys, are padded to a multiple

__device__ inline int padded(int rows) {
    return (rows + kPaddedRows - 1) / kPaddedRows * kPaddedRows;
}
__device__ inline int distance_count(const AttentionArguments& attention) {
    return padded(attention.q_len) + padded(attention.kv_len);
}

// dS summed over diagonals, by blocks in any order.
template <bool kExact> struct DistanceSumOf { using Type = float; };
template <> struct DistanceSumOf<true> { using Type = exact::Sum; };
using DistanceSum = DistanceSumOf<mod::kDeterministic>::Type;
__device__ inline DistanceSum* distance_sums(const AttentionArguments& attention) {
    return reinterpret_cast<DistanceSum*>(attention.distance_sums);
}

// One thread's entry, and the element that stands for it.
struct Distance {
    int head, index, distance;
    bool exists;

    __device__ explicit Distance(const AttentionArguments& attention) {
        const int blocks = distance_count(attention) / kPaddedRows;
        head = static_cast<int>(blockIdx.x) / blocks;
        index = static_cast<int>(blockIdx.x) % blocks * kPaddedRows + static_cast<int>(threadIdx.x);
        const int at = index - padded(attention.kv_len);
        exists = -attention.kv_len < at && at < attention.q_len;
        distance = exists ? at : 0;
    }
    template <typename Visit>
    __device__ void visit(const AttentionArguments& attention, const mod::Arguments& arguments,
                          Visit visit_element) const {
        const HeadPlace place(attention, arguments, head);
        const int q = max(distance, 0) + static_cast<int>(attention.q_offset);
        const int kv = max(-distance, 0) + static_cast<int>(attention.kv_offset);
        const mod::Row row =
            mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
        const mod::Column column =
            mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
        visit_element(mod::At{arguments, place.launch, place.head, row, column, place.b, place.h,
                              place.h_kv, q, kv, q, kv, nullptr, 0, 0, nullptr});
    }
};

} // namespace sm90
