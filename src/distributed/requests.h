// Requests of ragged tensors whose rows are one sequence for the ranks: the buffers that kernels
// read, and tensors as kernels of dense layouts take them. See passes/one_sequence.h.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "distributed/tensor_work.h"
#include "flexc/distributed.h"

namespace flexc::distributed {

class Requests {
  public:
    // Reads the lengths of requests in packed tensors; `sizes` has the numbers of requests and
    // rows.
    static Result<Requests> read(const Sizes& sizes, const Lengths& lengths);

    // Whether queries and keys of each request are the same rows, and q_idx starts at 0.
    bool have_same_rows() const { return have_same_rows_; }
    std::int64_t longest_queries() const { return longest_queries_; }
    std::int64_t longest_keys() const { return longest_keys_; }
    std::string text() const; // equal where requests are

    // Puts the buffers where launches read them, for the life of this object.
    Result<void> place(RankWork& work);
    std::vector<NamedTensor> buffers() const;

  private:
    std::vector<std::int32_t> of_query_, of_key_, facts_;
    std::int64_t longest_queries_ = 0, longest_keys_ = 0;
    bool have_same_rows_ = true;
    std::array<TensorView, 3> views_;
    std::array<Bytes, 3> memory_; // of copies
};

// Views packed tensors [rows, heads, .] as [1, heads, rows, .].
ForwardTensors as_one_sequence(const ForwardTensors& tensors);
BackwardTensors as_one_sequence(const BackwardTensors& tensors);

} // namespace flexc::distributed
