// Hopper's kernels: wgmma and TMA, warp-specialized, for f16 and bf16 tensors that TMA can walk.
#pragma once

#include <any>
#include <string_view>
#include <vector>

#include "plan/arch/family.h"
#include "sm90/backward_layout.h"
#include "sm90/forward_layout.h"

namespace flexc::plan::sm90 {

inline constexpr std::string_view kName = "sm90";
const Family& family();

using ::sm90::kRowBlock;                // of dq's accumulator
inline constexpr int kPaddedRows = 128; // queries of a head are padded to a multiple

// What is fixed in a forward beside what others have too.
struct Forward {
    bool has_registers_for_columns = false; // a thread can keep a value for each of its columns
    ::sm90::ForwardSizes sizes;             // of its tiles and of what it reads
    passes::TabulatedValues tabulated;
    // 4-byte words of shared memory for each table on chip. A table whose slice is larger is read
    // from global memory.
    std::vector<int> table_words;
    bool starts_with_tables = false; // accumulators start with entries of these tables
    // Keys from a tile's first key to the next tile's. If smaller than the tile, tiles overlap.
    int key_step = 0;
    bool starts_at_highest = false; // visits keys with the largest addends first
    bool goes_by_heads = false;     // all tiles of a head come before those of the next
    bool computes_in_parts = false; // computes addends for a few of a thread's elements at a time
    // Whether a kernel before it computes something.
    bool tabulates() const { return tabulated.any() || sizes.pair_kinds != 0; }
};
// Null if the kernel is no forward of this family.
inline const Forward* forward_of(const KernelConfig& config) {
    return std::any_cast<Forward>(&config.of_family);
}

std::vector<KernelConfig> forward_candidates(const KernelRequest& request);
std::vector<ForwardSchedule> forward_schedules(const KernelRequest& request);

std::vector<KernelConfig> backward_candidates(const KernelRequest& request);
// See BackwardShape::shares_keys().
bool shares_keys(const KernelRequest& request);
bool has_room_for_tables(const KernelRequest& request); // whether some tile sums them on chip
// Whether every tile has room on chip for the sums of a kernel for gradients of buffers alone.
bool has_room_for_sums(const KernelRequest& request);
KernelConfig delta_kernel();
KernelConfig convert_kernel(int head_dim);
KernelConfig tabulate_kernel();
KernelConfig fold_kernel(const passes::TileSums& of_main);

} // namespace flexc::plan::sm90
