// dq's pieces, added in the order of the keys, for a backward whose sums are the same on every run.
//
// Each tile of queries of a head has a counter, zero before the launch: of the blocks that have
// added their part. A block adds when all that have earlier keys have. These have lower numbers,
// and blocks start in the order of their numbers, so that whoever is waited for is running or done:
// nobody waits for ever.
//
// Blocks visit tiles from the last to the first. Where a mask makes later keys end with later
// queries, or begin with them, a block then comes to a tile no earlier than those with earlier keys
// that started with it; the other way round, all would first wait for the first. So each waits for
// about one hand-over, at its first tile, and follows from there on.
#pragma once

#include "common/turns.h"
#include "sm90/backward_pieces.cuh"

namespace sm90 {

// One for each slab of queries, of which a tile has one or two; behind dq's accumulator.
__device__ inline int* query_turns(const AttentionArguments& attention) {
    const long long rows =
        static_cast<long long>(padded(attention.q_len)) * attention.batch * attention.heads;
    return reinterpret_cast<int*>(attention.dq_accumulator + rows * mod::kHeadDim);
}

// Acquires what the blocks before have added, for the copy engine's next additions.
__device__ inline void wait_for_turn(const int* counter, int turn) {
    int now;
    do {
        asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(counter) : "memory");
    } while (now < turn);
    asm volatile("fence.proxy.async;" ::: "memory");
}
// Releases this thread's additions, when they have been done and not only read.
__device__ inline void pass_turn(int* counter) {
    asm volatile("cp.async.bulk.wait_group 0;\n"
                 "fence.proxy.async;\n"
                 "red.release.gpu.global.add.s32 [%0], 1;" ::"l"(counter)
                 : "memory");
}

__device__ inline void add_pieces_in_turn(const AttentionArguments& attention,
                                          const mod::Arguments& arguments, Shared shared,
                                          const KeyTile& keys) {
    constexpr int kSlabFloats = kSlabRows * mod::kHeadDim;
    const long long slabs = padded(attention.q_len) / kSlabRows;
    unsigned parity = 0;
    visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
        const long long before = (place.b * attention.heads + place.h) * slabs;
#pragma unroll 1
        for (int i = tiles.begin; i < tiles.end; ++i, parity ^= 1) {
            const int tile = tile_in_order(tiles, i);
            const long long slab = before + tile * kSlabs;
            int* const counter = query_turns(attention) + slab;
#pragma unroll
            for (int warpgroup = 0; warpgroup < kConsumers; ++warpgroup) {
                shared.piece_full(warpgroup).wait(parity);
                if (warpgroup == 0)
                    wait_for_turn(counter,
                                  earlier_key_tiles(keys.first_kv / mod::kKeyTile, mod::kKeyTile,
                                                    tile * mod::kQueryTile, place.low));
                add_piece(attention.dq_accumulator + slab * kSlabFloats, shared, warpgroup);
            }
            wait_for_additions<1>();
            shared.piece_empty(0).arrive();
            wait_for_additions<0>();
            shared.piece_empty(1).arrive();
            pass_turn(counter);
        }
    });
}

} // namespace sm90
