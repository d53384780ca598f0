// The state behind the public handles.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "flexc/kernel.h"
#include "passes/mod.h"
#include "runtime/executable.h"
#include "runtime/sequences.h"

namespace flexc::detail {

struct KernelState {
    CompileOptions options;
    Device device;
    passes::Mod mod;
    std::vector<passes::ArgumentSlot> slots;
    std::shared_ptr<const runtime::Executable> executable;
    double compile_ms = 0;
    bool from_cache = false;
};

struct PlanState {
    std::shared_ptr<const KernelState> kernel; // the one that made the plan
    Sizes sizes;
    double scale = 0;
    std::int64_t q_offset = 0, kv_offset = 0;
    bool accumulate_gradients = false, accumulate_dq = false;
    CpuThreads cpu_threads;
    std::vector<std::int64_t> size_values; // one per Program::sizes
    std::int64_t extent(const ir::Dim& dim) const {
        return dim.is_constant() ? dim.constant : size_values[dim.size];
    }
    std::vector<std::uint64_t> param_words; // one per Program::params
    // The argument words of divisors, in the order of their slots.
    std::vector<std::uint64_t> divisor_words;
    runtime::PassVariants variants;
    bool is_inside = true; // see runtime::Call
    std::size_t workspace_bytes = 0;
    std::size_t gradient_offset = 0; // in it, of sums that are rounded to other types
    // The block masks: owned by the plan, or built by each call in its workspace, at this offset
    // behind what kernels use.
    std::size_t block_mask_bytes = 0, block_mask_offset = 0;
    std::shared_ptr<void> block_mask;
    std::shared_ptr<runtime::SequenceState> sequences; // null: dense
    // Most rows of ragged tensors for which the backward's workspace is large enough.
    std::int64_t q_rows = 0, kv_rows = 0;
    // Most rows for which the block masks' memory is large enough.
    std::int64_t mask_q_rows = 0, mask_kv_rows = 0;
};

} // namespace flexc::detail
