// Runs after the kernels of a deterministic backward: rounds the exact sums of a captured buffer's
// gradient.
#include "mod.cuh"

#include "common/exact_sum.cuh"

namespace {
constexpr int kThreads = 32 * mod::kWarps;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_round_sums(const __grid_constant__ exact::Rounding rounding) {
    const long long threads = static_cast<long long>(gridDim.x) * kThreads;
    for (long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
         i < rounding.count; i += threads)
        rounding.to[i] += flexc_value(rounding.from[i]);
}
