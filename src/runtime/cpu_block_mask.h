// Builds the block mask for the CPU's loops, by interval arithmetic on what queries and keys alone
// give. Tiles that intervals cannot decide count as partial: the loops evaluate the mask of their
// elements anyway.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/arguments.h"
#include "flexc/result.h"
#include "passes/mod.h"

namespace flexc::runtime {

class CpuBlockMask {
  public:
    explicit CpuBlockMask(const passes::Mod& mod);

    std::size_t bytes(const AttentionArguments& attention) const;
    BlockMask in(const AttentionArguments& attention, void* memory) const;
    // `words` are the program's arguments, with pointers to host memory.
    Result<void> build(const AttentionArguments& attention, std::span<const std::uint64_t> words,
                       void* memory) const;

  private:
    std::int64_t batches(const AttentionArguments& attention) const;
    std::int64_t heads(const AttentionArguments& attention) const;

    ir::Program program_;
    ir::NodeId mask_;
    std::vector<passes::ArgumentSlot> slots_;
    bool by_batch_, by_head_;
};

} // namespace flexc::runtime
