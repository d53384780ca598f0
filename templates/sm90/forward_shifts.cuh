// Copies of reads whose addresses are affine in q and kv: threads of the producer warpgroup copy
// tiles of them to shared memory, line by line.
#pragma once

#include "common/select.h"
#include "sm90/forward_dense_bias.cuh"
#include "sm90/forward_tasks.cuh"
#include "sm90/shifted_copy.cuh"

namespace sm90 {

class ShiftsBeforeProducts;
class ShiftsAfterProducts;

#ifdef FLEXC_HAS_SHIFTED_READS

constexpr int kShiftThreads = 96; // threads that copy

// Stages tiles in the ring of the dense bias, which no program with shifted reads has, and lines'
// ends in a ring of their own.
class StagedShifts : public NoDenseBias {
    static constexpr int kCopiers = kShiftThreads;

  public:
    static __device__ int producers(const ForwardTensorMaps&) { return kCopiers; }
    static __device__ void initialise(const Shared& shared, int producers) {
        shared.biases.initialise(2 * producers, kConsumerThreads / 32);
        shared.shifted_ends.initialise(producers / 32, kConsumerThreads / 32);
    }
    static __device__ void produce(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const ForwardTensorMaps&,
                                   const Shared& shared, int) {
        const int thread = static_cast<int>(threadIdx.x) - (128 - kCopiers);
        if (thread < 0 || thread >= kCopiers) return;
        Position<BiasRing> slot;
        Position<ShiftedEndRing> end_slot;
        visit_tasks(attention, arguments, shared, [&](const Task& task, const HeadPlace& place) {
            const ShiftedHeads<> heads(attention, arguments, place);
            KeyOrder order(task.begin, task.end);
#pragma unroll 1
            for (int next = task.end - 1; next >= task.begin; --next) {
                copy_ends(attention, heads, task, shared, thread, order, next, end_slot);
                if (next < task.begin) return;
                const int first_key = order.tile(next) * mod::kKeyTile;
                shared.biases.empty(slot.stage).wait(slot.parity ^ 1);
                copy_shifts<kCopiers>(attention, heads.again(), task.first_row, first_key,
                                      shared.biases.at(slot.stage), thread);
                // Arrives once for what the thread stored, and once when its copies are complete.
                shared.biases.full(slot.stage).arrive();
                arrive_after_copies(shared.biases.full(slot.stage));
                slot.advance();
                order.advance();
            }
        });
    }

  protected:
    // Finds whether a tile of keys has only ends, and waits for the stage of these or of the tile.
    __device__ void wait(Logits& logits, const Shared& shared, int block) {
        logits.find_reach_of_shifts(block * mod::kKeyStep);
        has_ends_ = logits.shifts().have_ends();
        if (has_ends_)
            shared.shifted_ends.full(end_slot_.stage).wait(end_slot_.parity);
        else
            shared.biases.full(slot_.stage).wait(slot_.parity);
    }
    // Returns the address of the stage that was waited for.
    __device__ unsigned stage(const Shared& shared) const {
        return has_ends_ ? shared.shifted_ends.at(end_slot_.stage) : shared.biases.at(slot_.stage);
    }
    __device__ void release(const Shared& shared) {
        if (has_ends_) {
            arrive_as_warp(shared.shifted_ends.empty(end_slot_.stage));
            end_slot_.advance();
        } else {
            arrive_as_warp(shared.biases.empty(slot_.stage));
            slot_.advance();
        }
    }

  private:
    // Copies the ends of the tiles from `next` on that have nothing else, and moves `next` to the
    // first other tile. `ends` is made here, as it would take registers where tiles are copied.
    static __device__ void copy_ends(const AttentionArguments& attention,
                                     const ShiftedHeads<>& heads, const Task& task,
                                     const Shared& shared, int thread, KeyOrder& order, int& next,
                                     Position<ShiftedEndRing>& slot) {
        if constexpr (kHasShiftedEnds) {
            const ShiftedEnds<kCopiers> ends(attention, heads.again(), task.first_row,
                                             1 / attention.scale);
#pragma unroll 1
            for (; next >= task.begin; --next) {
                const int first_key = order.tile(next) * mod::kKeyTile;
                if (!ends.are_beyond(first_key)) return;
                ends.copy(thread, first_key, shared.shifted_ends.at(slot.stage),
                          [&] { shared.shifted_ends.empty(slot.stage).wait(slot.parity ^ 1); });
                arrive_as_warp(shared.shifted_ends.full(slot.stage));
                slot.advance();
                order.advance();
            }
        }
    }

    Position<BiasRing> slot_;
    Position<ShiftedEndRing> end_slot_;
    bool has_ends_ = false;
};

// Starts accumulators with what is read, so that products are added to it. The next block's values
// are loaded under the exponentials of this one.
class ShiftsBeforeProducts : public StagedShifts {
  public:
    __device__ void start(Scores& scores, Logits& logits, const Shared& shared,
                          const ConsumerThread&, int block) {
        wait(logits, shared, block);
        logits.start(scores, stage(shared), block * mod::kKeyStep);
        release(shared);
    }
    __device__ void await_next(Logits& logits, const Shared& shared, int block, bool has_more) {
        if (has_more) wait(logits, shared, block);
    }
    // After the last block, what is loaded does not matter: see BiasBeforeProducts.
    __device__ void start_next(Scores& scores, Logits& logits, const Shared& shared,
                               const ConsumerThread&, const KeyOrder& order, int next,
                               bool has_more) {
        logits.start(scores, has_more ? stage(shared) : shared.keys.at(0),
                     (has_more ? order.after(next) : order.tile(next)) * mod::kKeyStep);
        pin(scores);
        if (has_more) release(shared);
    }
};

// Adds what is read to finished products, from the stage.
class ShiftsAfterProducts : public StagedShifts {
  public:
    __device__ void load(Logits& logits, const Shared& shared, const ConsumerThread&,
                         int first_key) {
        wait(logits, shared, first_key / mod::kKeyStep);
        logits.use_shifts(stage(shared));
    }
    __device__ void release_after_logits(const Shared& shared) { release(shared); }
};

#endif

using Biases =
    Select<kReadsShifts, Select<Logits::kStartsWithBias, ShiftsBeforeProducts, ShiftsAfterProducts>,
           DenseBias>;

} // namespace sm90
