// Layout of what a backward keeps for each query in the workspace.
#pragma once

#include "common/sequence_length.cuh"
#include "sm80/arguments.h"

namespace sm80 {

// First row of a head: [batch, head, query], or [head, query of all requests] for ragged queries.
__device__ inline long long first_row_of_head(const AttentionArguments& attention,
                                              const SequenceLength& length, int h) {
    if constexpr (mod::Layouts::kQueriesAreRagged)
        return h * attention.q_rows + length.first_query_row();
    const long long head = static_cast<long long>(length.b()) * attention.heads + h;
    return head * (mod::Layouts::kAreDense ? length.queries() : attention.q_len);
}

// delta of a head's first query; those of its others follow.
__device__ inline float* delta_of_head(const KernelArguments& attention,
                                       const SequenceLength& length, int h) {
    return attention.delta + first_row_of_head(attention, length, h);
}

// The row of a query in dq's accumulator.
__device__ inline float* dq_accumulator_row(const KernelArguments& attention,
                                            const SequenceLength& length, int h, int query) {
    const long long row = first_row_of_head(attention, length, h) + query;
    return attention.dq_accumulator + row * mod::kHeadDim;
}

// The row statistics of a head's queries: see row_references.cuh. Each request is padded to whole
// tiles of kReferenceRows.
class RowStatistics {
  public:
    __device__ RowStatistics(const AttentionArguments& attention, const SequenceLength& length,
                             int h)
        : attention_(attention), first_(first_of(attention, length, h)) {}

    // Index of a query among all rows of the launch.
    __device__ long long place(int query) const { return first_ + query; }

    __device__ float& of(int query, RowStatistic statistic) const {
        return attention_.row_statistics[row_statistic_place(place(query), statistic)];
    }

  private:
    static __device__ long long first_of(const AttentionArguments& attention,
                                         const SequenceLength& length, int h) {
        if constexpr (mod::Layouts::kQueriesAreRagged)
            return first_ragged_statistic(attention, length.first_query_row(), length.b(), h);
        return (static_cast<long long>(length.b()) * attention.heads + h) *
               attention.statistic_rows;
    }

    const AttentionArguments& attention_;
    const long long first_;
};

} // namespace sm80
