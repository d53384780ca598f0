// After Hopper's backward kernel: gradients of reads whose indices use q and kv by their difference
// alone, from the sums of dS over diagonals. One thread does one distance of one head.
#include "mod.cuh"

#include "common/place.cuh"

namespace {

constexpr int kThreads = 32 * mod::kWarps;
static_assert(kThreads == mod::kKeyTile);

// Distances that are far apart often share an address.
__device__ void add_by_warp(float* to, float sum) {
    int same = 0;
    __match_all_sync(0xffffffffu, reinterpret_cast<unsigned long long>(to), &same);
    if (same) sum = flexc_warp_sum(sum);
    if (to != nullptr && (!same || threadIdx.x % 32 == 0)) flexc_accumulate(to, sum);
}

} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_fold_sm90(const __grid_constant__ AttentionArguments attention,
                             const __grid_constant__ mod::Arguments arguments) {
    // Index i is of the distance i - kv_len of a query from a key. The first has no elements.
    const int count = attention.q_len + attention.kv_len;
    const int blocks = (count + kThreads - 1) / kThreads;
    const int index = static_cast<int>(blockIdx.x) % blocks * kThreads + threadIdx.x;
    const int head = static_cast<int>(blockIdx.x) / blocks;
    const HeadPlace place(attention, arguments, head);

    const bool exists = index > 0 && index < count;
    const int distance = exists ? index - attention.kv_len : 0;
    const int q = max(distance, 0) + static_cast<int>(attention.q_offset);
    const int kv = max(-distance, 0) + static_cast<int>(attention.kv_offset);
    const mod::Row row =
        mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv, q);
    const mod::Column column =
        mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
    const mod::At at{arguments, place.launch, place.head, row, column, place.b, place.h,
                     place.h_kv, q, kv, q, kv};
    const float sum =
        exists ? attention.distance_sums[static_cast<long long>(head) * count + index] : 0;
#pragma unroll
    for (int gradient = 0; gradient < mod::kGradients; ++gradient)
        if (mod::sum_of(gradient) == mod::Sum::distance)
            add_by_warp(mod::gradient_address(at, gradient), sum);
}
