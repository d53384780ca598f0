// Runs after the kernels of a backward: converts the gradient of a captured buffer from its f32
// sums to the buffer's type.
#include "mod.cuh"

#include "common/element.cuh"
#include "common/rounding.h"

namespace {
constexpr int kThreads = 32 * mod::kWarps;

template <typename T> __device__ void round_all(const Rounding& rounding) {
    const long long threads = static_cast<long long>(gridDim.x) * kThreads;
    for (long long i = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
         i < rounding.count; i += threads)
        static_cast<T*>(rounding.to)[i] = flexc_from_float<T>(rounding.from[i]);
}
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_round_gradients(const __grid_constant__ Rounding rounding) {
    switch (rounding.type) {
    case Rounding::kF16: return round_all<flexc_f16>(rounding);
    case Rounding::kBf16: return round_all<flexc_bf16>(rounding);
    case Rounding::kF64: return round_all<double>(rounding);
    }
}
