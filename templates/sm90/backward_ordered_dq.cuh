// Adds dq's pieces in the order of the keys, so that a backward has the same sums on every run.
//
// Each tile of queries of a head has a counter, zero before the launch, of the blocks that have
// added their part. A block waits until all blocks with earlier keys have added theirs. These have
// lower numbers, and blocks start in the order of their numbers, so those that it waits for are
// running or done, and there is no deadlock.
//
// Blocks visit tiles of queries from the last to the first. Under masks by which later keys are
// seen by later queries (causal, windows), a block then reaches a tile no earlier than the blocks
// with earlier keys that started at the same tile: it waits about once, at its first tile, and
// follows them from there. In the opposite order all blocks would first wait for the first one.
#pragma once

#include "common/dq_order.h"
#include "sm90/backward_pieces.cuh"
#include "sm90/semaphore.cuh"

namespace sm90 {

// Returns the counters, one for each row block of queries, of which a tile has one or two. They are
// behind dq's accumulator.
__device__ inline int* dq_semaphores(const KernelArguments& attention) {
    return reinterpret_cast<int*>(attention.dq_accumulator +
                                  PaddedRows::count(attention) * mod::kHeadDim);
}

__device__ inline void add_pieces_in_order(const KernelArguments& attention,
                                           const mod::Arguments& arguments,
                                           const BackwardTensorMaps& maps, Shared shared,
                                           const KeyTile& only) {
    constexpr int kRowBlockFloats = kRowBlock * mod::kHeadDim;
    unsigned parity = 0;
    wait_for_kernel_ahead();
    KeyTiles::visit_beside<false>(shared, only, [&](const KeyTile& keys, unsigned which) {
        visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
            const PaddedRows rows(attention, keys.length(attention));
            const long long before = rows.first_block(place);
#pragma unroll 1
            for (int i = tiles.begin; i < tiles.end; ++i, parity ^= 1) {
                const int tile = tile_in_order(tiles, i);
                const long long row_block = before + tile * kRowBlocks;
                int* const counter = dq_semaphores(attention) + row_block;
                wait_for_semaphore(counter,
                                   earlier_key_tiles(keys.first_kv / mod::kKeyTile, mod::kKeyTile,
                                                     tile * mod::kQueryTile, place.low));
                add_tile(attention.dq_accumulator + row_block * kRowBlockFloats, shared, parity,
                         false);
                release_semaphore(counter);
            }
        });
        if constexpr (mod::kPersistent) store_gradients(attention, maps, shared, keys, which);
        report_additions(attention, keys);
    });
}

} // namespace sm90
