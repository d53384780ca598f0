// A block's tiles of keys: one, or where the kernel is persistent, one after another as one of its
// threads takes them. `step` counts tiles of queries.
#pragma once

#include "common/select.h"
#include "sm90/backward_key_order.cuh"

namespace sm90 {

class OnlyKeyTile {
  public:
    static __device__ KeyTile of_block(const AttentionArguments& attention,
                                       const mod::Arguments& arguments) {
        return KeyTileOrder::tile(attention, arguments, static_cast<int>(blockIdx.x));
    }
    // Called by threads of the producer warpgroup, by one alone or by a whole warp: calls
    // visit(keys, index) for each of the block's tiles of keys.
    template <bool kWholeWarp, typename Visit>
    static __device__ void visit_beside(const Shared&, const KeyTile& keys, Visit visit) {
        visit(keys, 0u);
    }

    // What follows is called by consumer warps.
    __device__ explicit OnlyKeyTile(const KeyTile& keys) : keys_(keys) {}

    __device__ const KeyTile& keys() const { return keys_; }
    static __device__ int slot() { return 0; }

    static __device__ void wait_for_keys(const Shared& shared, unsigned step) {
        if (step == 0) shared.keys().wait(0);
    }
    static __device__ void wait_for_values(const Shared& shared, unsigned step) {
        if (step == 0) shared.values().wait(0);
    }
    static __device__ void wait_for_d_scores(const Shared&, unsigned) {}
    static __device__ void end_step() {}
    template <typename Lane>
    static __device__ void release_values(const Shared&, unsigned, const Lane&) {}

    template <typename Run> static __device__ void visit(const Shared&, unsigned, Run run) {
        run();
    }

  private:
    const KeyTile keys_;
};

class KeyTileQueue {
  public:
    // Returns none: load_key_tiles() takes the block's tiles.
    static __device__ KeyTile of_block(const AttentionArguments&, const mod::Arguments&) {
        return KeyTile::none();
    }
    template <bool kWholeWarp, typename Visit>
    static __device__ void visit_beside(const Shared& shared, const KeyTile&, Visit visit) {
#pragma unroll 1
        for (unsigned tiles = 0;; ++tiles) {
            const int slot = static_cast<int>(tiles % kKeySlots);
            shared.keys(slot).wait(tiles / kKeySlots % 2);
            const KeyTile& next = KeyTile::in_shared(slot);
            if (next.is_none()) return;
            visit(next, tiles);
            if (kWholeWarp) __syncwarp();
            if (threadIdx.x % 32 == 0) shared.keys_empty(slot).arrive();
        }
    }

    __device__ explicit KeyTileQueue(const KeyTile&) {}

    __device__ const KeyTile& keys() const { return KeyTile::in_shared(slot()); }
    __device__ int slot() const { return static_cast<int>(before_ % kKeySlots); }

    // Does nothing: visit() has waited for the keys.
    static __device__ void wait_for_keys(const Shared&, unsigned) {}
    __device__ void wait_for_values(const Shared& shared, unsigned step) const {
        if (is_first(step)) shared.values().wait(before_ % 2);
    }
    // Waits until dv of the previous keys has been stored from the memory that dS will use.
    __device__ void wait_for_d_scores(const Shared& shared, unsigned step) const {
        if (is_first(step) && before_ > 0) shared.d_values_read().wait(before_ % 2 ^ 1);
    }
    __device__ void end_step() { starts_ = false; }
    // Called after the last step, also if no query sees any of these keys: frees the values'
    // memory.
    template <typename Lane>
    __device__ void release_values(const Shared& shared, unsigned step, const Lane& lane) const {
        wait_for_values(shared, step);
        wait_for_d_scores(shared, step);
        if (lane() == 0) shared.values_empty().arrive();
    }

    // Calls run() for every tile of keys.
    template <typename Run>
    __device__ void visit(const Shared& shared, const unsigned& step, Run run) {
#pragma unroll 1
        for (;; ++before_) {
            shared.keys(slot()).wait(before_ / kKeySlots % 2);
            if (keys().is_none()) return;
            starts_ = true;
            if constexpr (kSaves.keys_again) first_step_ = step;
            run();
        }
    }

  private:
    // Returns whether this is the first step with these keys. Where registers are short, compares
    // instead of keeping a predicate.
    __device__ bool is_first(unsigned step) const {
        return kSaves.keys_again ? step == first_step_ : starts_;
    }

    unsigned before_ = 0;     // tiles of keys before this one
    unsigned first_step_ = 0; // first step with these keys
    bool starts_ = true;      // no step yet with these keys
};

using KeyTiles = Select<mod::kPersistent, KeyTileQueue, OnlyKeyTile>;

} // namespace sm90
