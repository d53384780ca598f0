// Runs the steps of a pass for one call.
#pragma once

#include "cuda/tensor_maps.h"
#include "flexc/result.h"
#include "flexc/types.h"
#include "runtime/block_masks.h"
#include "runtime/loaded_pass.h"
#include "runtime/tile_queues.h"

namespace flexc::runtime {

// What all runs of one program's passes share.
struct RunContext {
    DType dtype;
    cuda::TensorForm form;
    int multiprocessors;
    const TileQueues* queues;      // null if no launch has one
    const BlockMasks* block_masks; // null if no launch reads one
};

// Fills and launches, on the call's stream, in the current context.
Result<void> run_pass(const LoadedPass& pass, const Call& call, const RunContext& context);

} // namespace flexc::runtime
