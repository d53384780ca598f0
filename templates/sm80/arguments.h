// The first argument of the generic kernels. Included by device and host code: plain C++, fixed
// layout.
#pragma once

#include "common/arguments.h"

namespace sm80 {

// What these kernels are passed beyond the common arguments: regions of the workspace.
struct KernelArguments : AttentionArguments {
    float* delta;           // [B, H, Q]: rowsum(d_out * o) - d_lse
    float* dq_accumulator;  // [B, H, Q, D], zeroed; of the fused backward
    float* partial_results; // see partial_results.cuh; of the forward of few queries
    int entry_parts;        // of dense tensors: parts of the keys of each batch entry
};

} // namespace sm80
