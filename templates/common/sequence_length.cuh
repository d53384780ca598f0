// How many queries and keys a batch entry has, and which indices the program sees for them. THE
// place that says so on the device: kernels count positions from the first query and key of the
// entry.
#pragma once

#include "common/arguments.h"

class SequenceLength {
  public:
    __device__ SequenceLength(const AttentionArguments& attention, int batch)
        : attention_(attention), b_(batch) {}

    __device__ int b() const { return b_; }
    __device__ int queries() const { return attention_.q_len; }
    __device__ int keys() const { return attention_.kv_len; }

    // What the program sees as q_idx of the first query, and as kv_idx of the first key.
    __device__ long long q_offset() const { return attention_.q_offset; }
    __device__ long long kv_offset() const { return attention_.kv_offset; }
    // Of a position; those past the end repeat the last.
    __device__ int q_idx(int query) const {
        return min(query, queries() - 1) + static_cast<int>(q_offset());
    }
    __device__ int kv_idx(int key) const {
        return min(key, keys() - 1) + static_cast<int>(kv_offset());
    }

  private:
    const AttentionArguments& attention_;
    int b_;
};
