// The block masks of a program's kernels, and the launches that build them.
#pragma once

#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "common/arguments.h"
#include "cuda/driver.h"
#include "flexc/result.h"
#include "plan/kernel.h"
#include "runtime/block_mask_memory.h"
#include "runtime/executable.h"

namespace flexc::runtime {

class BlockMasks {
  public:
    // module: of block_mask.cu, whose kernels keep `kept`. Kernels that visit tiles of the same
    // sizes in the same order share a mask. starts_early: a launch may start before the one ahead
    // has ended.
    static Result<BlockMasks> load(cuda::Module module, const plan::BlockMaskFacts& kept,
                                   bool starts_early);
    void add(const plan::MaskTiling& tiling, Pass pass);

    // Returns the memory of all masks.
    std::size_t bytes(const AttentionArguments& attention) const;
    // Returns the mask of such tiles, where build() puts it.
    BlockMask of(const plan::MaskTiling& tiling, const AttentionArguments& attention,
                 void* memory) const;
    // Builds the masks of one pass, or without a pass of both, in three launches; two if all rows
    // have few queries. `words` are the program's arguments.
    Result<void> build(const AttentionArguments& attention, const void* words, void* memory,
                       std::optional<Pass> pass, void* stream) const;

  private:
    // A mask, and which passes read it.
    struct Mask {
        plan::MaskTiling tiling;
        bool of_forward = false, of_backward = false;
        bool is_of(std::optional<Pass> pass) const {
            return !pass || (*pass == Pass::forward ? of_forward : of_backward);
        }
    };
    struct Placed {
        BlockMaskArguments arguments{};
        std::size_t bytes = 0;
    };

    BlockMasks(cuda::Module module, const plan::BlockMaskFacts& kept, cuda::Function facts,
               cuda::Function tiles, cuda::Function order, bool starts_early)
        : module_(std::move(module)), kept_(kept), facts_(facts), tiles_(tiles), order_(order),
          starts_early_(starts_early) {}
    Placed place(const AttentionArguments& attention, std::byte* memory) const;

    cuda::Module module_; // functions live as long as it does
    plan::BlockMaskFacts kept_;
    cuda::Function facts_, tiles_, order_;
    bool starts_early_;
    std::vector<Mask> masks_; // BlockMaskArguments::kMost at most
};

} // namespace flexc::runtime
