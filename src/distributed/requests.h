// Requests of ragged tensors, whose rows are one sequence for ranks: what kernels read of them, and
// tensors as kernels of dense layouts take them. See passes/one_sequence.h.
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
    // Of so many requests, in packed tensors of so many rows.
    static Result<Requests> read(const Sizes& sizes, const Lengths& lengths);

    // Queries and keys of each request are the same rows, and q_idx begins at 0.
    bool have_same_rows() const { return have_same_rows_; }
    std::int64_t longest_queries() const { return longest_queries_; }
    std::int64_t longest_keys() const { return longest_keys_; }
    std::string text() const; // equal where requests are

    // The buffers, where launches read them: as long as this lives.
    Result<void> place(RankWork& work);
    std::vector<NamedTensor> buffers() const;

  private:
    std::vector<std::int32_t> of_query_, of_key_, facts_;
    std::int64_t longest_queries_ = 0, longest_keys_ = 0;
    bool have_same_rows_ = true;
    std::array<TensorView, 3> views_;
    std::array<Bytes, 3> memory_; // of copies
};

// Packed tensors, [rows, heads, .], as [1, heads, rows, .].
ForwardTensors as_one_sequence(const ForwardTensors& tensors);
BackwardTensors as_one_sequence(const BackwardTensors& tensors);

} // namespace flexc::distributed
