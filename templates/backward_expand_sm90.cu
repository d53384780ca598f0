// Before Hopper's backward kernel: what reads give whose indices use q and kv by their difference
// alone, for every distance. One thread does one distance of one head.
#include "mod.cuh"

#include "sm90/distance.cuh"

namespace {
constexpr int kThreads = 32 * mod::kWarps;
static_assert(kThreads == sm90::kPaddedRows);
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_expand_sm90(const __grid_constant__ AttentionArguments attention,
                               const __grid_constant__ mod::Arguments arguments) {
    const sm90::Distance distance(attention);
    const long long count = sm90::distance_count(attention);
    const long long all = count * attention.batch * attention.heads;
    float* const to = attention.distance_values + distance.head * count + distance.index;
    distance.visit(attention, arguments, [&](const mod::At& at) {
#pragma unroll
        for (int read = 0; read < mod::kDistanceReads; ++read)
            to[read * all] = distance.exists ? mod::distance_value(at, read) : 0;
    });
}
