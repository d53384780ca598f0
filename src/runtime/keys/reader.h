// Reads where the keys of requests are from a caller's arrays. Each layout of keys has a reader in
// a file of its own.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "common/length_arrays.h"
#include "common/sequences.h"
#include "flexc/kernel.h"
#include "flexc/result.h"

namespace flexc::runtime {

// Extents of k and v, if lengths determine them.
struct KeyExtents {
    std::int64_t entries = 0, rows = 0; // of the first dim; rows of each entry
};

struct KeyReader {
    int table_layout;                         // KeyTable::layout
    std::span<const std::string_view> arrays; // arrays that only this layout has
    // Returns the extents of k and v, from the values in lengths that are not arrays.
    Result<KeyExtents> (*extents)(const Lengths& lengths, const Sizes& sizes);
    // Checks which arrays are given and how long they are, without reading their elements.
    Result<void> (*check_arrays)(const Lengths& lengths, std::int64_t batch);
    // Checks relations between elements of arrays, independent of requests: order, and last
    // offsets.
    Result<void> (*check_order)(const Lengths& lengths);
    // Sets the keys of all requests in `sequences`, and appends their entries of KeyTable::numbers.
    Result<void> (*read)(Layout layout, const Lengths& lengths, const Sizes& sizes,
                         std::span<Sequence> sequences, std::vector<int>& numbers);
    // Returns the largest number of entries of one request in KeyTable::numbers.
    std::int64_t (*most_numbers)(const Sizes& sizes, const KeyExtents& extents);
};

extern const KeyReader kKeysInOrder, kKeysInPages;

inline const KeyReader& key_reader(Layout layout) {
    switch (layout) {
    case Layout::paged: return kKeysInPages;
    case Layout::dense:
    case Layout::ragged: break;
    }
    return kKeysInOrder;
}

} // namespace flexc::runtime
