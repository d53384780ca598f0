// Where a backward's numbers for each query lie in the workspace.
#pragma once

#include "common/sequence_length.cuh"
#include "sm80/arguments.h"

namespace sm80 {

// Where the rows of a head begin: one batch entry after the other, or one head with all requests.
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

// Of the queries of a head: see row_references.cuh. Each request has whole tiles of kReferenceRows.
class RowFacts {
  public:
    __device__ RowFacts(const AttentionArguments& attention, const SequenceLength& length, int h)
        : attention_(attention), first_(first_of(attention, length, h)) {}

    // Among the facts of all rows.
    __device__ long long place(int query) const { return first_ + query; }

    __device__ float& of(int query, RowFact fact) const {
        return attention_.row_facts[row_fact_place(place(query), fact)];
    }

  private:
    static __device__ long long first_of(const AttentionArguments& attention,
                                         const SequenceLength& length, int h) {
        if constexpr (mod::Layouts::kQueriesAreRagged)
            return first_ragged_fact(attention, length.first_query_row(), length.b(), h);
        return (static_cast<long long>(length.b()) * attention.heads + h) * attention.fact_rows;
    }

    const AttentionArguments& attention_;
    const long long first_;
};

} // namespace sm80
