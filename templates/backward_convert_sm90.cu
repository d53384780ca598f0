// After Hopper's backward kernel: dq from its accumulator, in the type and layout that the caller
// wants. The accumulator holds slabs of 64 queries, groups of eight columns in each, and in a group
// what each thread of a warpgroup had: two columns of a row, and of the row eight below. One block
// does a slab, and adds gradients of buffers that are sums of products of q and dq.
#include "mod.cuh"

#include "sm80/backward_output.cuh"
#include "sm90/query_product.cuh"

using namespace sm80;
using mod::Element;

namespace {
constexpr int kThreads = 128;
constexpr int kRows = 64, kGroupColumns = 8;
static_assert(mod::kWarps * 32 == kThreads && mod::kQueryTile == kRows);
using Slab = Tile<float, kRows, mod::kHeadDim>;
static_assert(Slab::kBytes <= mod::kSharedBytes);
extern __shared__ __align__(16) unsigned char shared_memory[];
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_convert_sm90(const __grid_constant__ AttentionArguments attention,
                                const __grid_constant__ mod::Arguments arguments) {
    constexpr int kPaddedRows = 128;
    const int slabs = (attention.q_len + kRows - 1) / kRows;
    const int head = static_cast<int>(blockIdx.x) / slabs;
    const int slab = static_cast<int>(blockIdx.x) % slabs;
    const int b = head / attention.heads, h = head % attention.heads;
    const long long slabs_before =
        static_cast<long long>(head) *
        ((attention.q_len + kPaddedRows - 1) / kPaddedRows * (kPaddedRows / kRows));
    const float4* const from = reinterpret_cast<const float4*>(attention.dq_accumulator) +
                               (slabs_before + slab) * (kRows * mod::kHeadDim / 4) + threadIdx.x;

    const Slab tile{shared_address(shared_memory)};
    const int row =
        static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
    const int column = static_cast<int>(threadIdx.x) % 4 * 2;
    sm90::QueryProduct query(attention, arguments, b, h, slab * kRows + row);
    sm90::QueryProduct below(attention, arguments, b, h, slab * kRows + row + 8);
#pragma unroll
    for (int group = 0; group < mod::kHeadDim / kGroupColumns; ++group) {
        float4 sums = from[group * kThreads];
        query.take(column + group * kGroupColumns, sums.x, sums.y);
        below.take(column + group * kGroupColumns, sums.z, sums.w);
        const unsigned to = tile.at(row, column + group * kGroupColumns);
        store_shared(to, sums.x);
        store_shared(to + 4, sums.y);
        store_shared(to + 8 * Slab::kPitch, sums.z);
        store_shared(to + 8 * Slab::kPitch + 4, sums.w);
    }
    query.add_gradients();
    below.add_gradients();
    __syncthreads();
    write_gradient<kThreads>(GradientPlane<Element>(attention.dq, attention.dq_flags, b, h), tile,
                             slab * kRows, attention.q_len, attention.scale);
}
