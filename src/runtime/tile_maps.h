// The tile maps of a program's kernels: what memory they take, and the launches that build them.
#pragma once

#include <cstddef>
#include <vector>

#include "common/arguments.h"
#include "cuda/config.h"
#include "cuda/driver.h"
#include "flexc/result.h"

namespace flexc::runtime {

class TileMaps {
  public:
    // `planner` is the configuration of the module's kernels. Kernels that visit tiles in the same
    // order and sizes share a map.
    static Result<TileMaps> load(const cuda::Module& module, const cuda::KernelConfig& planner);
    void add(const cuda::KernelConfig& kernel);

    // Of all maps; known from the lengths alone.
    std::size_t bytes(const AttentionArguments& attention) const;
    // Where build() puts the map of this kernel.
    TileMap of(const cuda::KernelConfig& kernel, const AttentionArguments& attention,
               void* memory) const;
    // Three launches, whatever the number of maps. `words` are the program's arguments.
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

    TileMaps(cuda::PlannerShape shape, cuda::Function facts, cuda::Function tiles,
             cuda::Function order)
        : shape_(shape), facts_(facts), tiles_(tiles), order_(order) {}
    static Tiling tiling_of(const cuda::KernelConfig& kernel);
    Placed place(const AttentionArguments& attention, std::byte* memory) const;

    cuda::PlannerShape shape_;
    cuda::Function facts_, tiles_, order_;
    std::vector<Tiling> tilings_;
};

} // namespace flexc::runtime
