// Kernels by mma.sync and cp.async, for every architecture from sm_80 on and tensors of any layout.
#pragma once

#include <string_view>
#include <vector>

#include "plan/arch/family.h"

namespace flexc::plan::sm80 {

inline constexpr std::string_view kName = "sm80";
const Family& family();

// Bytes of one row of a tile in shared memory: columns rounded up to 16 elements, and 16 bytes that
// keep eight consecutive rows in different banks. The device's Tile lays rows out the same way.
int tile_row_bytes(int columns, DType dtype);

std::vector<KernelConfig> forward_candidates(const KernelRequest& request, bool is_last_resort);
// Of backward_fused, which adds to dq by atomics, and backward_dkdv, which leaves dq to the query
// kernel.
std::vector<KernelConfig> backward_candidates(const KernelRequest& request, bool is_last_resort);
KernelConfig query_kernel(const KernelRequest& request);
KernelConfig delta_kernel();
KernelConfig convert_kernel();

} // namespace flexc::plan::sm80
