// Runs after Hopper's backward kernel: converts dq from its accumulator to the type and layout that
// the caller wants. The accumulator holds row blocks of 64 queries, in each of them groups of eight
// columns, and in a group the values of each thread of a warpgroup: two columns of a row and of the
// row eight below. One block converts one row block, which TMA loads. Blocks that start while the
// last ones of the backward kernel still run wait only for those of their own head.
#include "mod.cuh"

#include "common/dependence.cuh"
#include "sm80/backward_output.cuh"
#include "sm80/tile_order.cuh"
#include "sm90/arguments.h"
#include "sm90/backward_layout.h"
#include "sm90/pack.cuh"
#include "sm90/semaphore.cuh"
#include "sm90/tma.cuh"

using namespace sm80;
using mod::Element;

namespace {
constexpr int kThreads = 128;
constexpr int kRows = 64, kGroupColumns = 8, kGroups = mod::kHeadDim / kGroupColumns;
constexpr int kRowBlockFloats = kRows * mod::kHeadDim, kRowBlockBytes = 4 * kRowBlockFloats;
static_assert(mod::kWarps * 32 == kThreads && mod::kQueryTile == kRows);
static_assert(mod::kHeadDim % kGroupColumns == 0);
// Shared memory holds the row block, a barrier, and the row block's state.
static_assert(kRowBlockBytes + 16 <= mod::kSharedBytes);
extern __shared__ __align__(128) unsigned char shared_memory[];

// Returns the number of key tiles of a head, or with ragged tensors of one request of it.
__device__ inline int key_tiles_of(const sm90::KernelArguments& attention,
                                   const SequenceLength& length) {
    constexpr int kKeyTile = 64 * sm90::kConsumers;
    return mod::Layouts::kAreDense ? attention.blocks_of_head
                                   : (length.key_rows() + kKeyTile - 1) / kKeyTile;
}

// Waits until all blocks of the backward kernel that add to the head's dq have done so.
__device__ inline void wait_for_blocks(const sm90::KernelArguments& attention,
                                       const SequenceLength& length, int kv_head) {
    constexpr unsigned kNanoseconds = 200;
    while (sm90::load_acquiring(attention.blocks_done + kv_head) < key_tiles_of(attention, length))
        __nanosleep(kNanoseconds);
    asm volatile("fence.proxy.async;" ::: "memory");
}

// Returns the index of the tile's row block in dq's accumulator.
__device__ inline long long row_block_of_all(const AttentionArguments& attention,
                                             const SequenceLength& length, const BlockTile& tile) {
    constexpr int kPaddedRows = 128;
    if constexpr (mod::Layouts::kAreDense)
        return static_cast<long long>(tile.head) *
                   ((attention.q_len + kPaddedRows - 1) / kPaddedRows * (kPaddedRows / kRows)) +
               tile.tile;
    const int h = tile.head % attention.heads;
    return first_ragged_statistic(attention, length.first_query_row(), length.b(), h) / kRows +
           tile.tile;
}

// Transposes among four lanes: each lane passes its pair of columns of four groups, and gets all
// four pairs of one group, 16 bytes that it can store at once.
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
    flexc_backward_convert_sm90(const __grid_constant__ sm90::KernelArguments attention,
                                const __grid_constant__ mod::Arguments arguments) {
    if (attention.blocks_done == nullptr) wait_for_kernel_ahead();
    const BlockTile tile = tile_of_rows(attention, static_cast<int>(blockIdx.x), kRows);
    const SequenceLength length(attention, tile.head / attention.heads);
    const int h = tile.head % attention.heads;
    const int first_row = tile.tile * kRows;
    if (!has_queries(length, tile.tile)) {
        wait_for_kernel_ahead();
        return;
    }
    const sm90::Barrier arrival{shared_address(shared_memory) + kRowBlockBytes};
    int& shared_state = reinterpret_cast<int*>(shared_memory + kRowBlockBytes)[2];
    if (threadIdx.x == 0) {
        arrival.initialise(1);
        sm90::publish_barriers();
        if (attention.blocks_done != nullptr)
            wait_for_blocks(attention, length, tile.head / (attention.heads / attention.kv_heads));
        const long long index = row_block_of_all(attention, length, tile);
        // Loads the row block without waiting for its state, which takes as long to read.
        arrival.arrive_expecting(kRowBlockBytes);
        sm90::load_bytes(shared_address(shared_memory),
                         attention.dq_accumulator + index * kRowBlockFloats, kRowBlockBytes,
                         arrival);
        shared_state = attention.row_block_states == nullptr ? sm90::kRowBlockStored
                                                             : attention.row_block_states[index];
    }
    __syncthreads();
    // No block adds to row blocks behind a request's last query: they hold no sums.
    const bool has_sums = shared_state != sm90::kRowBlockUntouched &&
                          (mod::Layouts::kAreDense || first_row < length.queries());
    const float4* const from = reinterpret_cast<const float4*>(shared_memory) + threadIdx.x;

    const int row = first_row + static_cast<int>(threadIdx.x) / 32 * 16 +
                    static_cast<int>(threadIdx.x) % 32 / 4;
    const int lane = static_cast<int>(threadIdx.x) % 4;
    const bool is_row = row < length.query_rows(), is_row_below = row + 8 < length.query_rows();
    const auto dq = query_gradient<Element>(attention.dq, attention.dq_flags, length, h);
    const bool in_pieces = !dq.is_wide && dq.narrow.aligned_to(16);
    arrival.wait(0);
#pragma unroll 1
    for (int first = 0; first < kGroups; first += 4) {
        unsigned pairs[4], pairs_below[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int column = (first + i) * kGroupColumns + 2 * lane;
            if (column >= mod::kHeadDim) continue;
            float4 sums = has_sums ? from[(first + i) * kThreads] : float4{0, 0, 0, 0};
            sums.x *= attention.scale, sums.y *= attention.scale;
            sums.z *= attention.scale, sums.w *= attention.scale;
            pairs[i] = sm90::pack(Element{}, sums.x, sums.y);
            pairs_below[i] = sm90::pack(Element{}, sums.z, sums.w);
            if (in_pieces) continue;
            if (is_row) dq.put(row, column, mod::kHeadDim, sums.x, sums.y);
            if (is_row_below) dq.put(row + 8, column, mod::kHeadDim, sums.z, sums.w);
        }
        if (!in_pieces) continue;
        const uint4 piece = transpose_quad(pairs), piece_below = transpose_quad(pairs_below);
        const int column = (first + lane) * kGroupColumns;
        if (column >= mod::kHeadDim) continue;
        if (is_row) *reinterpret_cast<uint4*>(dq.narrow.at(row, column)) = piece;
        if (is_row_below) *reinterpret_cast<uint4*>(dq.narrow.at(row + 8, column)) = piece_below;
    }
    // Kernels that wait for this one rely on the kernel ahead having ended, too.
    wait_for_kernel_ahead();
}
