// Finished pieces of dq from shared memory to its accumulator, by a thread of the producer's
// warpgroup.
#pragma once

#include "sm90/backward_output.cuh"
#include "sm90/backward_tiles.cuh"
#include "sm90/dependence.cuh"
#include "sm90/semaphore.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

// A piece to its part of a tile of queries, which starts at `slab`; instead of what is there, or
// added to it.
__device__ inline void add_piece(float* slab, Shared shared, int piece, bool stores) {
    constexpr int kSlabFloats = kSlabRows * mod::kHeadDim;
    float* const to = slab + piece * (kSlabs == 2 ? kSlabFloats : kPieceBytes / 4);
    const unsigned from = shared.base + kLayout.query_gradient + piece * kPieceBytes;
    const int bytes = kPieceSlabs * groups_of(piece) * kGroupBytes;
    if (bytes > 0 && stores) store_bytes(to, from, bytes);
    if (bytes > 0 && !stores) add_bytes(to, from, bytes);
    end_additions();
}

// The pieces of a tile of queries, each when it is there.
__device__ inline void add_tile(float* slab, Shared shared, unsigned parity, bool stores) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
        shared.piece_full(piece).wait(parity);
        add_piece(slab, shared, piece, stores);
    }
    if constexpr (kPieces == 2) {
        wait_for_additions<1>();
        shared.piece_empty(0).arrive();
    }
    wait_for_additions<0>();
    shared.piece_empty(kPieces - 1).arrive();
}

// Sums of a tile of queries: the first block that has a part of them stores it, and others wait
// until it has. Nobody who has taken a tile waits for another's. Addresses are found where they are
// needed, because registers are short.
class TileSums {
  public:
    // slab: the tile's first, of all. seen: what peek() gave.
    __device__ TileSums(const KernelArguments& attention, int slab, int seen)
        : attention_(attention), slab_(slab),
          before_(seen == kSlabStored ? seen : take_slab(attention.slab_states + slab)) {}

    // Asked long before it is needed; what it says may be out of date, but that it is stored. No
    // slab is negative.
    static __device__ int peek(const KernelArguments& attention, int slab) {
        if (slab < 0 || attention.slab_states == nullptr) return kSlabStored;
        return load_relaxed(attention.slab_states + slab);
    }

    __device__ void add(Shared shared, unsigned parity) const {
        constexpr long long kSlabFloats = kSlabRows * mod::kHeadDim;
        const bool is_first = before_ == kSlabUntouched;
        if (before_ == kSlabTaken) wait_for_semaphore(attention_.slab_states + slab_, kSlabStored);
        if (before_ == kSlabStored) asm volatile("fence.proxy.async;" ::: "memory");
        add_tile(attention_.dq_accumulator + slab_ * kSlabFloats, shared, parity, is_first);
        if (!is_first) return;
#pragma unroll
        for (int i = 0; i < kSlabs; ++i)
            report_stored(attention_.slab_states + slab_ + i);
    }

  private:
    const KernelArguments& attention_;
    int slab_, before_;
};

// By the thread that has added all of a block's pieces.
__device__ inline void report_additions(const KernelArguments& attention, const KeyTile& keys) {
    if (attention.blocks_done != nullptr)
        release_semaphore(attention.blocks_done + keys.head(attention));
}

__device__ inline void add_pieces(const KernelArguments& attention, const mod::Arguments& arguments,
                                  const BackwardTensorMaps& maps, Shared shared,
                                  const KeyTile& only) {
    unsigned parity = 0;
    wait_for_kernel_ahead();
    visit_key_tiles<false>(shared, only, [&](const KeyTile& keys, unsigned which) {
        visit_heads(attention, arguments, keys, [&](const HeadPlace& place, TileRange tiles) {
            QueryTiles walk(attention, place, keys, tiles);
            const int before = (place.b * attention.heads + place.h) *
                               static_cast<int>(padded(attention.q_len) / kSlabRows);
            const auto next = [&] { return walk.is_done() ? -1 : before + walk.tile() * kSlabs; };
            int slab = next(), seen = TileSums::peek(attention, slab);
#pragma unroll 1
            for (; slab >= 0; parity ^= 1) {
                const TileSums sums(attention, slab, seen);
                walk.advance();
                slab = next();
                seen = TileSums::peek(attention, slab);
                sums.add(shared, parity);
            }
        });
        if constexpr (mod::kPersistent) store_gradients(attention, maps, shared, keys, which);
        report_additions(attention, keys);
    });
}

} // namespace sm90
