// Kernels by mma.sync and cp.async, for every architecture from sm_80 on and tensors of any layout.
#pragma once

#include <string_view>
#include <vector>

#include "plan/arch/family.h"
#include "sm80/layout.h"

namespace flexc::plan::sm80 {

inline constexpr std::string_view kName = "sm80";
const Family& family();

// Returns the sizes that determine a kernel's shared memory layout.
::sm80::TileSizes sizes(const KernelRequest& request, const BlockShape& block);

// Bytes that a kernel for short sequences may spill: values that are used once or twice a sequence.
inline constexpr int kSpillsOfSequence = 64;
// Returns how many blocks should be resident on a multiprocessor: the most that registers (so many
// for each thread) and shared memory allow, so that loads of short sequences are always in flight.
int blocks_at_once(const KernelRequest& request, int registers, const BlockShape& block);

std::vector<KernelConfig> forward_candidates(const KernelRequest& request, bool is_last_resort);
// Returns the kernel for requests with few queries (forward only).
KernelConfig few_queries_kernel(const KernelRequest& request);
bool is_of_warpgroups(const KernelConfig& config); // its blocks of many rows use wgmma
// Adds the kernel for few queries to a forward pass, ahead of its last launch, which then skips the
// requests that have few queries.
void add_few_queries(const TargetProgram& program, PassPlan& pass);
// Candidates for backward_fused, which adds to dq with atomics, and for backward_dkdv, which leaves
// dq to query_kernel().
std::vector<KernelConfig> backward_candidates(const KernelRequest& request);
KernelConfig query_kernel(const KernelRequest& request);
KernelConfig delta_kernel();
KernelConfig convert_kernel();

} // namespace flexc::plan::sm80
