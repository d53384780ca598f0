// The block masks of a program's kernels: what memory they take, and the launches that build them.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "common/arguments.h"
#include "cuda/driver.h"
#include "flexc/result.h"
#include "plan/kernel.h"

namespace flexc::runtime {

class BlockMasks {
  public:
    // `planner` is the configuration of the module's kernels. Kernels that visit tiles in the same
    // order and sizes share a mask.
    static Result<BlockMasks> load(cuda::Module module, const plan::KernelConfig& planner);
    void add(const plan::KernelConfig& kernel);

    // Of all masks; known from the lengths alone.
    std::size_t bytes(const AttentionArguments& attention) const;
    // Where build() puts the mask of this kernel.
    BlockMask of(const plan::KernelConfig& kernel, const AttentionArguments& attention,
                 void* memory) const;
    // Three launches, whatever the number of masks. `words` are the program's arguments.
    Result<void> build(const AttentionArguments& attention, const void* words, void* memory,
                       void* stream) const;

  private:
    struct Tiling {
        int query_tile, key_tile;
        bool by_keys;
        friend bool operator==(const Tiling&, const Tiling&) = default;
    };
    struct Placed {
        PlanArguments plan{};
        std::size_t bytes = 0;
    };

    BlockMasks(cuda::Module module, plan::BlockMaskFacts shape, cuda::Function facts,
               cuda::Function tiles, cuda::Function order)
        : module_(std::move(module)), shape_(shape), facts_(facts), tiles_(tiles), order_(order) {}
    static Tiling tiling_of(const plan::KernelConfig& kernel);
    Placed place(const AttentionArguments& attention, std::byte* memory) const;

    cuda::Module module_; // functions live as long as it does
    plan::BlockMaskFacts shape_;
    cuda::Function facts_, tiles_, order_;
    std::vector<Tiling> tilings_;
};

} // namespace flexc::runtime
