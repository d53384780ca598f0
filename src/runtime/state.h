// The insides of the public handles.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "flexc/kernel.h"
#include "passes/mod.h"
#include "runtime/executable.h"

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
    bool accumulate_gradients = false;
    std::vector<std::int64_t> size_values;  // one per Program::sizes
    std::vector<std::uint64_t> param_words; // one per Program::params
    std::size_t workspace_bytes = 0;
    std::size_t gradient_offset = 0; // in it, of sums that are rounded to other types
    // Of the tiles that the mask shows: held here, or built by each call in its workspace, after
    // what the kernels use.
    std::size_t map_bytes = 0, map_offset = 0;
    std::shared_ptr<void> map;
};

} // namespace flexc::detail
