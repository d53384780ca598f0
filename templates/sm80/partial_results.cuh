// What parts of the keys give for rows of requests with few queries: sums of weighted values, the
// maximum that these are relative to, and the sum of weights.
#pragma once

#include "common/sequence_length.cuh"
#include "sm80/arguments.h"

namespace sm80 {

class PartialResults {
  public:
    __device__ explicit PartialResults(const KernelArguments& attention)
        : attention_(attention),
          rows_(few_rows(attention.q_len, attention.heads / attention.kv_heads)) {}

    __device__ float* output(int part, int h_kv, int row) const {
        return of(part, h_kv) + row * mod::kHeadDimV;
    }
    __device__ float& maximum(int part, int h_kv, int row) const {
        return of(part, h_kv)[rows_ * mod::kHeadDimV + 2 * row];
    }
    __device__ float& sum(int part, int h_kv, int row) const {
        return of(part, h_kv)[rows_ * mod::kHeadDimV + 2 * row + 1];
    }

  private:
    // Outputs of all rows, and two floats for each behind them.
    __device__ float* of(int part, int h_kv) const {
        return attention_.partial_results +
               (static_cast<long long>(part) * attention_.kv_heads + h_kv) *
                   (rows_ * (mod::kHeadDimV + 2));
    }

    const KernelArguments& attention_;
    const int rows_;
};

// The request to which a part of keys belongs, and which of its parts it is; count is 0 where there
// is no such part.
struct PartOfRequest {
    int request, part, count;
};
__device__ inline PartOfRequest part_of_request(const AttentionArguments& attention, int part) {
    const SequenceArguments& all = attention.sequences;
    if (part >= all.of(attention.batch).first_part) return {0, 0, 0};
    const int request =
        request_at(part, attention.batch, [&](int b) { return all.of(b).first_part; });
    const int first = all.of(request).first_part;
    return {request, part - first, all.of(request + 1).first_part - first};
}

} // namespace sm80
