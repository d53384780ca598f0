// Kernels by mma.sync and cp.async, for every architecture from sm_80 on and tensors of any layout.
#pragma once

#include <string_view>
#include <vector>

#include "plan/arch/family.h"
#include "sm80/layout.h"

namespace flexc::plan::sm80 {

inline constexpr std::string_view kName = "sm80";
const Family& family();

// What shared memory depends on.
::sm80::TileSizes sizes(const KernelRequest& request, int query_tile, int key_tile, int stages);

// Bytes that may spill of kernels for short sequences: of what is used once or twice for each.
inline constexpr int kSpillsOfSequence = 64;
// How many blocks a multiprocessor has: all that so many registers of a thread and shared memory
// allow, so that loads of short sequences are on their way at all times.
int blocks_at_once(const KernelRequest& request, int registers, int warps, int shared_bytes);

std::vector<KernelConfig> forward_candidates(const KernelRequest& request, bool is_last_resort);
// Of requests with few queries.
KernelConfig few_queries_kernel(const KernelRequest& request);
bool is_of_warpgroups(const KernelConfig& config); // such a kernel, where blocks have many rows
// Of its blocks; each has tiles of its own.
::sm80::TileSizes few_queries_sizes(const KernelConfig& config, const KernelRequest& request);
// Puts that kernel before the launch of a forward of requests, which leaves those to it.
void add_few_queries(const Program& program, PassPlan& pass);
// Of backward_fused, which adds to dq by atomics, and backward_dkdv, which leaves dq to the query
// kernel.
std::vector<KernelConfig> backward_candidates(const KernelRequest& request, bool is_last_resort);
KernelConfig query_kernel(const KernelRequest& request);
KernelConfig delta_kernel();
KernelConfig convert_kernel();

} // namespace flexc::plan::sm80
