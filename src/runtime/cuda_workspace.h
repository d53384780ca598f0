// Places the regions of a pass in the caller's workspace, and passes their addresses to kernels.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>

#include "plan/pass.h"
#include "runtime/executable.h"

namespace flexc::runtime {

plan::DenseSizes dense_sizes_of(const AttentionArguments& attention);
plan::CallLengths lengths_of(const AttentionArguments& attention);

// The first argument of a kernel of any family: the common part, then the family's own.
struct KernelArgument {
    AttentionArguments attention;
    std::array<std::byte, plan::kMostFamilyBytes> of_family = {};

    template <typename T> void set(std::size_t byte, T value) {
        std::memcpy(reinterpret_cast<std::byte*>(this) + byte, &value, sizeof(value));
    }
};
static_assert(std::is_standard_layout_v<KernelArgument> &&
              sizeof(KernelArgument) == sizeof(AttentionArguments) + plan::kMostFamilyBytes);

// Returns the second argument of a kernel: the program's words.
const void* words_of(const Call& call);

struct PlacedRegion {
    const plan::WorkspaceRegion* region = nullptr;
    std::size_t offset = 0, bytes = 0;
};

// Places the regions one after another. The regions must outlive this object.
class PlacedWorkspace {
  public:
    PlacedWorkspace(std::span<const plan::WorkspaceRegion> regions, const Call& call);

    std::size_t bytes() const { return bytes_; }
    const PlacedRegion* find(plan::Region region) const;
    // Writes the addresses of the regions into a kernel's first argument. stores_gradients: whether
    // the call uses PassPlan::stored_gradients.
    void name_in(KernelArgument& argument, void* memory, bool stores_gradients) const;

  private:
    static constexpr std::size_t kMost = 12;
    std::array<PlacedRegion, kMost> regions_;
    std::size_t count_ = 0, bytes_ = 0;
};

} // namespace flexc::runtime
