// Results over parts of the keys become one, a part at a time: for each row the largest lse so far,
// and weights and outputs relative to it, in f32.
#pragma once

#include <cstdint>
#include <vector>

#include "flexc/distributed.h"

namespace flexc::distributed {

class PartialSums {
  public:
    PartialSums(std::int64_t batch, std::int64_t heads, std::int64_t rows, std::int64_t columns);

    // o [batch, heads, rows, columns] and lse [batch, heads, rows], without gaps, of some heads and
    // rows. A row whose lse is -inf adds nothing, whatever its o is.
    void add(RowRange heads, RowRange rows, const float* o, const float* lse);

    // Rows that nothing was added to have o = 0 and lse = -inf. lse may be absent. sinks, without
    // gaps like an lse of all rows, take their weight of o; null: there are none.
    void finish(RowRange rows, const float* sinks, const TensorView& o,
                const TensorView& lse) const;

  private:
    std::int64_t batch_, heads_, rows_, columns_;
    std::vector<float> sums_;     // of weighted outputs
    std::vector<float> largest_;  // lse
    std::vector<double> weights_; // sum of e^(lse - largest)
};

} // namespace flexc::distributed
