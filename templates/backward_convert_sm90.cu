// After Hopper's backward kernel: dq from its accumulator, in the type and layout that the caller
// wants. The accumulator holds slabs of 64 queries, groups of eight columns in each, and in a group
// what each thread of a warpgroup had: two columns of a row, and of the row eight below. One block
// does a slab, and adds gradients of buffers that are sums of products of q and dq. Blocks that
// start while the last ones of that kernel run wait for those of their head alone.
#include "mod.cuh"

#include "sm80/backward_output.cuh"
#include "sm90/dependence.cuh"
#include "sm90/pack.cuh"
#include "sm90/query_product.cuh"
#include "sm90/turn.cuh"

using namespace sm80;
using mod::Element;

namespace {
constexpr int kThreads = 128;
constexpr int kRows = 64, kGroupColumns = 8, kGroups = mod::kHeadDim / kGroupColumns;
static_assert(mod::kWarps * 32 == kThreads && mod::kQueryTile == kRows);
static_assert(mod::kHeadDim % kGroupColumns == 0);

// Until all blocks that add to a head's dq have.
__device__ inline void wait_for_blocks(const AttentionArguments& attention, int kv_head) {
    constexpr unsigned kNanoseconds = 200;
    while (sm90::load_acquiring(attention.blocks_done + kv_head) < attention.blocks_of_head)
        __nanosleep(kNanoseconds);
}

// Past the L1 cache. Loads that come one after the other in the program are on their way together.
__device__ inline float4 load_past(const float4* from) {
    float4 x;
    asm volatile("ld.global.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                 : "l"(from));
    return x;
}

// Four lanes have a pair of columns of each of four groups; then each has all pairs of one.
__device__ inline uint4 transpose_quad(const unsigned (&pairs)[4]) {
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    const auto swapped = [](bool mine_is_second, unsigned first, unsigned second, int distance,
                            unsigned& a, unsigned& b) {
        const unsigned got =
            __shfl_xor_sync(0xffffffffu, mine_is_second ? first : second, distance);
        a = mine_is_second ? got : first;
        b = mine_is_second ? second : got;
    };
    unsigned a[4], x[4];
    swapped(odd, pairs[0], pairs[1], 1, a[0], a[1]);
    swapped(odd, pairs[2], pairs[3], 1, a[2], a[3]);
    swapped(high, a[0], a[2], 2, x[0], x[2]);
    swapped(high, a[1], a[3], 2, x[1], x[3]);
    return {x[0], x[1], x[2], x[3]};
}
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_convert_sm90(const __grid_constant__ AttentionArguments attention,
                                const __grid_constant__ mod::Arguments arguments) {
    constexpr int kPaddedRows = 128;
    if (attention.blocks_done == nullptr) sm90::wait_for_kernel_ahead();
    const int slabs = (attention.q_len + kRows - 1) / kRows;
    const int head = static_cast<int>(blockIdx.x) / slabs;
    const int slab = static_cast<int>(blockIdx.x) % slabs;
    const int b = head / attention.heads, h = head % attention.heads;
    const long long slabs_before =
        static_cast<long long>(head) *
        ((attention.q_len + kPaddedRows - 1) / kPaddedRows * (kPaddedRows / kRows));
    if (attention.blocks_done != nullptr) {
        if (threadIdx.x == 0)
            wait_for_blocks(attention, head / (attention.heads / attention.kv_heads));
        __syncthreads();
    }
    const float4* const from = reinterpret_cast<const float4*>(attention.dq_accumulator) +
                               (slabs_before + slab) * (kRows * mod::kHeadDim / 4) + threadIdx.x;
    const int state =
        attention.slab_states == nullptr ? kSlabStored : attention.slab_states[slabs_before + slab];

    const int row = slab * kRows + static_cast<int>(threadIdx.x) / 32 * 16 +
                    static_cast<int>(threadIdx.x) % 32 / 4;
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const GradientPlane<Element> dq(attention.dq, attention.dq_flags, b, h);
    sm90::QueryProduct query(attention, arguments, b, h, row);
    sm90::QueryProduct below(attention, arguments, b, h, row + 8);
    // Groups from `first` on, zeros past the last.
    const auto load = [&](auto& sums, int first) {
        constexpr int kCount = sizeof(sums) / sizeof(sums[0]);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            if (first + i < kGroups) sums[i] = load_past(from + (first + i) * kThreads);
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            if (first + i >= kGroups || state == kSlabUntouched) sums[i] = {0, 0, 0, 0};
            if (first + i >= kGroups) continue;
            const int column = (first + i) * kGroupColumns + 2 * lane;
            query.take(column, sums[i].x, sums[i].y);
            below.take(column, sums[i].z, sums[i].w);
            sums[i].x *= attention.scale, sums[i].y *= attention.scale;
            sums[i].z *= attention.scale, sums[i].w *= attention.scale;
        }
    };
    if (!dq.is_wide && dq.narrow.aligned_to(16)) {
        constexpr int kAtOnce = 8;
#pragma unroll
        for (int first = 0; first < kGroups; first += kAtOnce) {
            float4 sums[kAtOnce];
            load(sums, first);
#pragma unroll
            for (int four = 0; four < kAtOnce && first + four < kGroups; four += 4) {
                unsigned pairs[4], pairs_below[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    pairs[i] = sm90::pack(Element{}, sums[four + i].x, sums[four + i].y);
                    pairs_below[i] = sm90::pack(Element{}, sums[four + i].z, sums[four + i].w);
                }
                const uint4 piece = transpose_quad(pairs), below_it = transpose_quad(pairs_below);
                const int column = (first + four + lane) * kGroupColumns;
                if (column < mod::kHeadDim && row < attention.q_len)
                    *reinterpret_cast<uint4*>(dq.narrow.at(row, column)) = piece;
                if (column < mod::kHeadDim && row + 8 < attention.q_len)
                    *reinterpret_cast<uint4*>(dq.narrow.at(row + 8, column)) = below_it;
            }
        }
    } else {
        constexpr int kAtOnce = 2;
#pragma unroll 1
        for (int first = 0; first < kGroups; first += kAtOnce) {
            float4 sums[kAtOnce];
            load(sums, first);
#pragma unroll
            for (int i = 0; i < kAtOnce; ++i) {
                const int column = (first + i) * kGroupColumns + 2 * lane;
                if (column < mod::kHeadDim && row < attention.q_len)
                    dq.put(row, column, mod::kHeadDim, sums[i].x, sums[i].y);
                if (column < mod::kHeadDim && row + 8 < attention.q_len)
                    dq.put(row + 8, column, mod::kHeadDim, sums[i].z, sums[i].w);
            }
        }
    }
    query.add_gradients();
    below.add_gradients();
    // Whoever waits for this kernel waits for that one too.
    sm90::wait_for_kernel_ahead();
}
