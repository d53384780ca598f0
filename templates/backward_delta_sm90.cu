// Before Hopper's backward kernel, for every query: delta = sum over d of d_out * o, less d_lse;
// the lse in the exponent's units; zeros in dq's accumulator; and gradients of buffers that follow
// from d_lse alone. One block does kQueryTile rows of one head, those past the end included: the
// copy engine reads whole tiles of all three. Zeros also for how many blocks are done with a head.
// Where that kernel stores what it has first, dq's accumulator is left as it is, and said to be
// untouched.
#include "mod.cuh"

#include "common/math.cuh"
#include "sm90/dependence.cuh"
#include "sm90/row_gradients.cuh"
#include "sm90/row_products.cuh"

using namespace sm80;

namespace {
constexpr int kThreads = 32 * mod::kWarps;
static_assert(mod::kQueryTile == kThreads && mod::kHeadDim % 8 == 0);
} // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    flexc_backward_delta_sm90(const __grid_constant__ AttentionArguments attention,
                              const __grid_constant__ mod::Arguments arguments) {
    // First: kernels after the next one may start soon, too.
    if (attention.blocks_done != nullptr && blockIdx.x == 0)
#pragma unroll 1
        for (int i = threadIdx.x; i < attention.batch * attention.kv_heads; i += kThreads)
            attention.blocks_done[i] = 0;
    if (attention.tiles_taken != nullptr && blockIdx.x == 0 && threadIdx.x == 0)
        *attention.tiles_taken = 0;
    sm90::let_next_start();
    const int query_tiles = (attention.q_len + mod::kQueryTile - 1) / mod::kQueryTile;
    // What the next kernel needs first comes last, and is in the L2 cache then.
    const int tile = static_cast<int>(gridDim.x - 1 - blockIdx.x);
    const int head = tile / query_tiles;
    const int b = head / attention.heads, h = head % attention.heads;
    const int first_row = tile % query_tiles * mod::kQueryTile;
    const long long first_of_all = static_cast<long long>(tile) * mod::kQueryTile;

    // Each thread has the row whose sum it is given at the end.
    const int row = first_row + static_cast<int>(threadIdx.x);
    const bool inside = row < attention.q_len;
    float lse = negative_infinity(), d_lse = 0;
    if (inside) {
        lse = *Plane<float>(attention.lse, b, h).at(row, 0);
        if (attention.d_lse.data != nullptr)
            d_lse = *Plane<float>(attention.d_lse, b, h).at(row, 0);
    }

    if (attention.slab_states != nullptr) {
        constexpr int kSlabs = mod::kQueryTile / 64;
        if (threadIdx.x < kSlabs)
            attention.slab_states[static_cast<long long>(tile) * kSlabs + threadIdx.x] =
                kSlabUntouched;
    } else {
        float4* const dq =
            reinterpret_cast<float4*>(attention.dq_accumulator + first_of_all * mod::kHeadDim);
        for (int i = threadIdx.x; i < mod::kQueryTile * mod::kHeadDim / 4; i += kThreads)
            dq[i] = {0, 0, 0, 0};
    }

    const float product = sm90::row_product_of(attention, b, h, first_row);
    const long long of_all = first_of_all + threadIdx.x;
    attention.delta[of_all] = inside ? product - d_lse : 0;
    // Where nothing is visible, an infinite origin makes every weight zero.
    attention.origins[of_all] = lse == negative_infinity() ? -lse : lse * kLog2E;

    if (mod::kGradients == 0 || attention.d_lse.data == nullptr) return;
    const int counted = min(row, attention.q_len - 1);
    const float sum = inside ? sm90::row_sum(attention, b, h, row) : 0;
    sm90::visit_row(attention, arguments, b, h, counted,
                    [&](const mod::At& at) { sm90::add_row_gradients(at, sum); });
}
