// Where the regions of a pass lie in the caller's workspace, and how kernels find them.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>

#include "plan/pass.h"
#include "runtime/executable.h"

namespace flexc::runtime {

plan::CallLengths lengths_of(const AttentionArguments& attention);

struct PlacedRegion {
    plan::Region region;
    std::size_t offset = 0, bytes = 0;
};

// One region after the other.
class PlacedWorkspace {
  public:
    PlacedWorkspace(std::span<const plan::WorkspaceRegion> regions, const Call& call);

    std::size_t bytes() const { return bytes_; }
    const PlacedRegion* find(plan::Region region) const;
    // Writes where each region is to its member of the arguments.
    void name_in(AttentionArguments& attention, void* memory) const;

  private:
    static constexpr std::size_t kMost = 12;
    std::array<PlacedRegion, kMost> regions_;
    std::size_t count_ = 0, bytes_ = 0;
};

} // namespace flexc::runtime
