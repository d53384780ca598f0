// What a block of a chosen forward keeps in shared memory, and a thread in registers.
#pragma once

#include <optional>
#include <vector>

#include "plan/arch/sm90/forward_choice.h"
#include "sm90/forward_layout.h"

namespace flexc::plan::sm90 {

// Shared memory for slices of tables, in 4-byte words. With two stages, the slices of the next tile
// of queries fit too.
struct TableWords {
    int stages = 0;
    std::vector<int> of_tables;
    int sum() const;
};
// Returns the memory for slices of tables; slices of known size are kept whole. Nothing if they do
// not fit.
std::optional<TableWords> table_words(const Choice& choice);

// Returns the sizes that determine the layout of shared memory, and the bytes of that.
::sm90::ForwardSizes sizes_of(const Choice& choice);
int shared_bytes(const Choice& choice);

// Returns how many copies lanes have of what each kind of pairs adds: with fewer than these, lanes
// wait for each other as long as with one.
inline constexpr int kLeastPairCopies = 16;
int pair_copies(const ::sm90::ForwardSizes& sizes);

// Returns the accumulators of a thread: scores, their biases, P of the previous tile, and the
// output; and how many it may have.
int accumulators(const Choice& choice);
int accumulator_limit(const Choice& choice);

// Returns how many elements have their sums computed at once: as many as have registers.
int sum_elements(const Choice& choice);

} // namespace flexc::plan::sm90
