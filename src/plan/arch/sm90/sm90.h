// Hopper's kernels: wgmma and TMA, warp-specialized, for f16 and bf16 tensors that TMA can walk.
#pragma once

#include <string_view>
#include <vector>

#include "plan/arch/family.h"
#include "sm90/backward_layout.h"

namespace flexc::plan::sm90 {

inline constexpr std::string_view kName = "sm90";
const Family& family();

using ::sm90::kRowBlock;                // of dq's accumulator
inline constexpr int kPaddedRows = 128; // queries of a head are padded to a multiple

std::vector<KernelConfig> forward_candidates(const KernelRequest& request);
std::vector<ForwardSchedule> forward_schedules(const KernelRequest& request);

std::vector<KernelConfig> backward_candidates(const KernelRequest& request);
// See BackwardShape::shares_keys().
bool shares_keys_between_warpgroups(const KernelRequest& request);
KernelConfig delta_kernel();
KernelConfig convert_kernel(int head_dim);
KernelConfig expand_kernel();
KernelConfig fold_kernel(int grid_places); // as KernelConfig has them

} // namespace flexc::plan::sm90
