// The memory of a block mask and its layout. They depend only on lengths, or for ragged tensors on
// the number of rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/arguments.h"
#include "plan/kernel.h"
#include "runtime/alignment.h"
#include "support/amounts.h"

namespace flexc::runtime {

// Hands out pieces of memory; without memory, only adds up their sizes.
class Carver {
  public:
    explicit Carver(std::byte* memory) : memory_(memory) {}
    template <typename T> T* take(std::int64_t count) {
        std::byte* const piece = memory_ == nullptr ? nullptr : memory_ + used_;
        used_ = support::plus(used_,
                              aligned(support::times(static_cast<std::size_t>(count), sizeof(T))));
        return reinterpret_cast<T*>(piece);
    }
    std::size_t used() const { return used_; }

  private:
    std::byte* memory_;
    std::size_t used_ = 0;
};

// Returns how many pieces of a size cover the whole.
inline std::int64_t pieces(std::int64_t whole, std::int64_t size) {
    return (whole + size - 1) / size;
}

// Number of different block masks.
struct MaskCount {
    int batches = 1, heads = 1;
};
MaskCount masks_of(const plan::BlockMaskFacts& facts, const AttentionArguments& attention);

PlannedBlockMask place_block_mask(const plan::BlockMaskFacts& facts, const plan::MaskTiling& tiling,
                                  const AttentionArguments& attention, Carver& carver);

} // namespace flexc::runtime
