// Runs before Hopper's backward kernel: evaluates, for every distance, the reads whose indices use
// q and kv only by their difference. One thread computes one distance of one head.
#include "mod.cuh"

#include "sm90/expand_distances.cuh"

namespace {
constexpr int kThreads = 32 * mod::kWarps;
static_assert(kThreads == kExpandedStep);
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_expand_sm90(const __grid_constant__ sm90::KernelArguments attention,
                               const __grid_constant__ mod::Arguments arguments) {
    sm90::expand_distances(attention, arguments, static_cast<int>(blockIdx.x),
                           [](const mod::At&, float value) { return value; });
}
