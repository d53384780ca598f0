// What the kernels of a pass keep in the caller's workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cuda/config.h"
#include "runtime/cuda_executable.h"
#include "runtime/executable.h"

namespace flexc::runtime {

// Of Hopper's forward: vectors that are computed before it.
struct ForwardWorkspace {
    std::size_t distance_values = 0; // f32 [2 vectors, B, H, Q + KV]
    std::size_t key_values = 0;      // f32 [vectors, B, H, KV]
    std::size_t bytes = 0;
    std::int64_t blocks = 0; // of the launch that computes them
};
ForwardWorkspace forward_workspace(const AttentionArguments& attention,
                                   const cuda::ExpandedValues& expanded);

// Which kernels compute a backward.
enum class BackwardForm : std::uint8_t { split, fused, hopper };

// Where each part starts.
struct BackwardWorkspace {
    std::size_t delta = 0;          // f32 [B, H, Q]
    std::size_t dq_accumulator = 0; // f32 [B, H, Q, D]; empty without a fused kernel
    std::size_t dq_bytes = 0;
    std::size_t origins = 0;       // f32 [B, H, Q]; empty without Hopper's kernel
    std::size_t distance_sums = 0; // f32 [B, H, Q + KV]; likewise
    std::size_t distance_bytes = 0;
    std::size_t distance_values = 0; // f32 [reads, B, H, Q + KV]; likewise
    // In deterministic mode: sums are exact::Sum, and Hopper's kernel has a counter for each slab
    // of queries behind dq's accumulator.
    std::size_t turns = 0, turn_bytes = 0;
    std::size_t exact_sums = 0, exact_bytes = 0;
    // Two counters for each of Hopper's blocks, where gradients are stored first.
    std::size_t stored_tiles = 0, stored_tile_bytes = 0;
    std::size_t blocks_done = 0; // int [B, H_KV] of Hopper's blocks that have added to dq
    std::size_t tiles_taken = 0; // int, of keys by Hopper's blocks
    std::size_t slab_states = 0; // int [B, H, Q / 64] of dq's accumulator
    std::size_t bytes = 0;
};
BackwardWorkspace backward_workspace(const Call& call, const CudaOptions& options,
                                     BackwardForm form);

} // namespace flexc::runtime
