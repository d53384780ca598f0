// The memory of a block mask and its layout. They depend only on lengths, or for ragged tensors on
// the number of rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/arguments.h"
#include "plan/kernel.h"
#include "support/arena.h"

namespace flexc::runtime {

// Returns how many pieces of a size cover the whole.
inline std::int64_t pieces(std::int64_t whole, std::int64_t size) {
    return (whole + size - 1) / size;
}

// Number of different block masks.
struct MaskCount {
    int batches = 1, heads = 1;
};
MaskCount masks_of(const plan::BlockMaskFacts& facts, const AttentionArguments& attention);

BuiltBlockMask place_block_mask(const plan::BlockMaskFacts& facts, const plan::MaskTiling& tiling,
                                const AttentionArguments& attention, support::Arena& arena);

} // namespace flexc::runtime
