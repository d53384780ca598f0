// Where a backward's numbers for each query lie in the workspace.
#pragma once

#include "common/sequence_length.cuh"
#include "sm80/arguments.h"

namespace sm80 {

__device__ inline long long head_over_batch(const AttentionArguments& attention,
                                            const SequenceLength& length, int h) {
    return static_cast<long long>(length.b()) * attention.heads + h;
}

// delta of a head's first query; those of its others follow. The head is over the batch.
__device__ inline float* delta_of_head(const KernelArguments& attention,
                                       const SequenceLength& length, long long head) {
    return attention.delta + head * length.queries();
}

// The row of a query in dq's accumulator.
__device__ inline float* dq_accumulator_row(const KernelArguments& attention,
                                            const SequenceLength& length, long long head,
                                            int query) {
    const long long row = head * length.queries() + query;
    return attention.dq_accumulator + row * mod::kHeadDim;
}

// Of the queries of a head, over the batch: see row_references.cuh.
class RowFacts {
  public:
    __device__ RowFacts(const AttentionArguments& attention, long long head)
        : attention_(attention), first_(head * attention.fact_rows) {}

    __device__ float& of(int query, RowFact fact) const {
        return attention_.row_facts[row_fact_place(first_ + query, fact)];
    }

  private:
    const AttentionArguments& attention_;
    const long long first_;
};

} // namespace sm80
