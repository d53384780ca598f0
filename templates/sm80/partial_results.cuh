// Results of parts of the keys for rows of requests with few queries (split-KV): the unnormalized
// output, the maximum score to which it is relative, and the sum of weights.
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
    // A part's results: outputs of all rows, followed by the maximum and the sum of each row.
    __device__ float* of(int part, int h_kv) const {
        return attention_.partial_results +
               (static_cast<long long>(part) * attention_.kv_heads + h_kv) *
                   (rows_ * (mod::kHeadDimV + 2));
    }

    const KernelArguments& attention_;
    const int rows_;
};

// The parts of a request: the first of them among those of all requests, and their number.
struct PartsOfRequest {
    int first, count;
};
__device__ inline PartsOfRequest parts_of_request(const KernelArguments& attention,
                                                  const DenseLength& length) {
    return {length.b() * attention.entry_parts, attention.entry_parts};
}
__device__ inline PartsOfRequest parts_of_request(const KernelArguments& attention,
                                                  const RequestLength& length) {
    const int first = length.sequence().first_part;
    return {first, attention.sequences.of(length.b() + 1).first_part - first};
}

// The request to which a part of keys belongs, its index among that request's parts, and how many
// parts the request has: 0 if there is no such part.
struct PartOfRequest {
    int request, part, count;
};
// Called by whole warps, whose lanes search for the request together: 31 requests take one load,
// 1,023 take two dependent ones.
__device__ inline PartOfRequest part_of_request(const KernelArguments& attention, int part) {
    if constexpr (mod::Layouts::kAreDense) {
        const int count = attention.entry_parts;
        const int request = flexc_quotient(part, count);
        return {request, part - request * count, count};
    }
    constexpr int kLanes = 32, kNone = 0x7fffffff;
    const int lane = static_cast<int>(threadIdx.x) % kLanes;
    // The last request whose first part is `part` or earlier is one of `count` from `request` on.
    // The entry after the last request holds the number of all parts.
    int request = 0, first = 0, next = kNone;
    for (int count = attention.batch + 1;;) {
        const int step = (count + kLanes - 1) / kLanes;
        const int own =
            lane * step < count ? attention.sequences.of(request + lane * step).first_part : kNone;
        const int found = __popc(__ballot_sync(0xffffffffu, own <= part)) - 1;
        first = __shfl_sync(0xffffffffu, own, found);
        next =
            min(next, __shfl_sync(0xffffffffu, found < kLanes - 1 ? own : kNone, found + 1 & 31));
        request += found * step;
        if (step == 1) break;
        count = min(step, count - found * step);
    }
    if (request == attention.batch) return {0, 0, 0};
    return {request, part - first, next - first};
}

} // namespace sm80
