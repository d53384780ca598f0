// A block's tiles of keys, as the warps that multiply go through them: one, or where the kernel is
// persistent, one after another as another thread takes them. `step` counts tiles of queries.
#pragma once

#include "common/select.h"
#include "sm90/backward_tiles.cuh"

namespace sm90 {

class OnlyKeyTile {
  public:
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
