// The first argument of the generic kernels. Included by device and host code: plain C++, fixed
// layout.
#pragma once

#include "common/arguments.h"

namespace sm80 {

// Of a backward, in its workspace.
struct KernelArguments : AttentionArguments {
    float* delta;          // [B, H, Q]: rowsum(d_out * o) - d_lse
    float* dq_accumulator; // [B, H, Q, D], zeroed; of the fused backward
};

} // namespace sm80
