// What becomes of a block's rows after its keys: they are stored, or kept as a part of a result
// whose further keys other pieces of work have.
#pragma once

#include "cpu/backend/attention.h"
#include "cpu/backend/request_block.h"
#include "cpu/backend/tile_range.h"
#include "support/arena.h"

namespace flexc::cpu::requests {

// Finishes rows after all keys: adds the sink, divides sums by the sum of weights, and stores.
void finish(const TileFunctions& functions, const Launch& launch, int request, const Block& block,
            const Scratch& scratch);
// Clears the rows of queries that the request has and does not use.
void clear_unused(const Launch& launch, int request);

// The partial results of all pieces.
class Parts {
  public:
    Parts(const Launch& launch, support::Arena& arena);

    // Keeps a block of a piece's rows.
    void keep(const SequenceWork& work, const Block& block) const;
    // Combines the parts of some heads of one result, in the order of keys, as rows of `block`.
    void merge(const SequenceWork* work, Range heads, Block& block) const;

  private:
    struct Part {
        float *output, *row_max, *row_sum;
    };
    Part part(int index) const;

    std::int64_t rows_, dim_; // of each part
    float* memory_ = nullptr;
};

} // namespace flexc::cpu::requests
