// Vectors that a kernel has computed before it, one number for each key or for each distance q -
// kv: lengths that device and host agree on.
#pragma once

#include "common/host_device.h"

constexpr int kExpandedStep = 128; // numbers that a block of threads computes
// Tiles of the forward may start at the last row, and have up to as many. Those of the backward end
// with a step.
constexpr int kForwardOverhang = 192;

FLEXC_SHARED constexpr long long expanded_length(long long rows, int overhang) {
    return (rows + overhang + kExpandedStep - 1) / kExpandedStep * kExpandedStep;
}
