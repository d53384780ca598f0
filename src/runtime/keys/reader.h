// How the keys of requests are read from a caller's arrays: a reader for each way that keys lie, in
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

// Of k and v, where lengths say them.
struct KeyExtents {
    std::int64_t entries = 0, rows = 0; // of the first dim; of each entry
};

struct KeyReader {
    int table_layout;                         // KeyTable::layout
    std::span<const std::string_view> arrays; // that kernels for other layouts are not given
    // By what lengths say beside arrays.
    Result<KeyExtents> (*extents)(const Lengths& lengths, const Sizes& sizes);
    // Which arrays there are, and how long; nothing of them is read.
    Result<void> (*check_arrays)(const Lengths& lengths, std::int64_t batch);
    // All that one number says of others, whatever request it is of.
    Result<void> (*check_order)(const Lengths& lengths);
    // Keys of all requests, and what they have in KeyTable::numbers.
    Result<void> (*read)(Layout layout, const Lengths& lengths, const Sizes& sizes,
                         std::span<Sequence> sequences, std::vector<int>& numbers);
    // Of one request in KeyTable::numbers, at most.
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
