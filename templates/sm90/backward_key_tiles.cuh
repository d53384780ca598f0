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
    // For threads beside those that multiply, one alone or a whole warp: visit(keys, how many
    // before).
    template <bool kWholeWarp, typename Visit>
    static __device__ void visit_beside(const Shared&, const KeyTile& keys, Visit visit) {
        visit(keys, 0u);
    }

    // For the warps that multiply.
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
    static __device__ void leave_values(const Shared&, unsigned, const Lane&) {}

    template <typename Run> static __device__ void visit(const Shared&, unsigned, Run run) {
        run();
    }

  private:
    const KeyTile keys_;
};

class KeyTileQueue {
  public:
    // load_key_tiles() says which.
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

    // visit() has waited for these.
    static __device__ void wait_for_keys(const Shared&, unsigned) {}
    __device__ void wait_for_values(const Shared& shared, unsigned step) const {
        if (is_first(step)) shared.values().wait(before_ % 2);
    }
    // Until dv of the previous keys was stored from the memory that dS will use.
    __device__ void wait_for_d_scores(const Shared& shared, unsigned step) const {
        if (is_first(step) && before_ > 0) shared.d_values_read().wait(before_ % 2 ^ 1);
    }
    __device__ void end_step() { starts_ = false; }
    // After the last step; also where no query sees any of these keys.
    template <typename Lane>
    __device__ void leave_values(const Shared& shared, unsigned step, const Lane& lane) const {
        wait_for_values(shared, step);
        wait_for_d_scores(shared, step);
        if (lane() == 0) shared.values_empty().arrive();
    }

    // run() for every tile.
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
    // Where registers are short, by a comparison instead of a predicate that is kept.
    __device__ bool is_first(unsigned step) const {
        return kSaves.keys_again ? step == first_step_ : starts_;
    }

    unsigned before_ = 0;     // tiles
    unsigned first_step_ = 0; // with these keys
    bool starts_ = true;      // no step yet with these keys
};

using KeyTiles = Select<mod::kPersistent, KeyTileQueue, OnlyKeyTile>;

} // namespace sm90
