// Merges results over parts of the keys, a part at a time.
#pragma once

#include <cstdint>

#include "distributed/work_tensors.h"

namespace flexc::distributed {

class MergedRows {
  public:
    // Parts have at most `most_rows` rows.
    static Result<MergedRows> make(TensorWork& work, std::int64_t batch, std::int64_t heads,
                                   std::int64_t rows, std::int64_t columns, std::int64_t most_rows);

    // Where a launch writes its part, of some heads and `rows` rows, until add() merges it.
    struct PartViews {
        TensorView o, lse;
    };
    PartViews part(const RowRange& heads, std::int64_t rows) const;
    // Merges the part. A row whose lse is -inf adds nothing, whatever its o is.
    Result<void> add(const RowRange& heads, const RowRange& rows) const;

    // Where a launch writes the first part of these rows directly, until add_first().
    PartViews first_part(const RowRange& heads, const RowRange& rows) const;
    Result<void> add_first(const RowRange& heads, const RowRange& rows) const;

    // Writes the results. Rows to which nothing was added get o = 0 and lse = -inf. lse may be
    // absent. sinks: one for each row, whose weight reduces o; null for none. with_part: part()
    // holds the last part of these rows, all heads, which has not been added.
    Result<void> finish(const RowRange& rows, bool with_part, const float* sinks,
                        const TensorView& o, const TensorView& lse) const;

  private:
    explicit MergedRows(TensorWork& work) : work_(&work), memory_(work) {}
    ranks::Part part_of(const RowRange& heads, const RowRange& rows) const;

    TensorWork* work_;
    std::int64_t batch_ = 0;
    ranks::PartialSums sums_{};
    WorkTensors memory_;
    TensorView outputs_, largest_; // of the sums
    TensorView part_o_, part_lse_;
};

} // namespace flexc::distributed
