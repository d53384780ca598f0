// Runs before Hopper's backward kernel: evaluates, for every distance, what the score mod and its
// derivatives compute or read from q - kv, b and h alone. One thread has one distance of one head.
#include "mod.cuh"

#include "sm90/tabulate_distances.cuh"

namespace {
constexpr int kThreads = 32 * mod::kWarps;
static_assert(kThreads == kTabulatedStep);
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_tabulate_sm90(const __grid_constant__ sm90::KernelArguments attention,
                                 const __grid_constant__ mod::Arguments arguments) {
    sm90::tabulate_distances(attention, arguments, static_cast<int>(blockIdx.x),
                             [](const mod::At&, float value) { return value; });
}
