// What grows by the same amount from key to key comes with the products: the MMAs of QK sum over
// eight more columns, in which a query has three parts of its head's slope and a key its place in
// the tile. What is added at the tile's first key is an offset of exponents.
#pragma once

#include "common/place.cuh"
#include "sm90/addend_parts.cuh"
#include "sm90/key_addend.cuh"

namespace sm90 {

#ifdef FLEXC_HAS_OPERANDS

class SlopeStep : public NoAddendStep {
  public:
    // Stores the keys' operand, which is the same for all tiles. The two halves of a step's columns
    // are the same memory.
    static __device__ void store_unit(const AttentionArguments&, const Shared& shared) {
        const int key = static_cast<int>(threadIdx.x);
        if (key >= mod::kKeyTile) return;
        store_slope_key(shared.slope_keys + ForwardLayout::kAddendBytes * key, key);
        publish_shared();
    }
    // Stores the operand of a head, for eight queries that stand for all: eight threads store one
    // each, when all of the warpgroup have left the tile before.
    static __device__ void store_queries(const AttentionArguments& attention,
                                         const mod::Arguments& arguments, const HeadPlace& place,
                                         int, const Shared& shared, const ConsumerThread& thread) {
        const int barrier = 1 + kConsumers + thread.warpgroup;
        synchronize(barrier, 128);
        const int row = 32 * thread.warp + thread.lane;
        if (row < 8)
            visit_element(attention, arguments, place, 0, 0, [&](const mod::At& at) {
                store_slope(queries(shared, thread) + ForwardLayout::kAddendBytes * row,
                            mod::slope(at), attention.scale * mod::multiplier(at));
                return 0;
            });
        publish_shared();
        synchronize(barrier, 128);
    }

    __device__ SlopeStep(const Shared& shared, const ConsumerThread& thread)
        : NoAddendStep(shared, thread), keys_(held_operand(shared.slope_keys)),
          queries_(held_operand(queries(shared, thread))) {}
    __device__ unsigned of_queries(int) const { return queries_; }
    __device__ unsigned of_keys(int) const { return keys_; }

  private:
    static __device__ unsigned queries(const Shared& shared, const ConsumerThread& thread) {
        return shared.slopes + ForwardLayout::kUnitBytes * thread.warpgroup;
    }

    unsigned keys_, queries_;
};

#endif

} // namespace sm90
