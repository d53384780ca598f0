// Tables: threads beside the producer copy a head's slice of each to shared memory, for a tile of
// queries, unless it is there from a tile before.
#pragma once

#include "common/select.h"
#include "sm90/copy_async.cuh"
#include "sm90/forward_tasks.cuh"
#include "sm90/table_reads.cuh"

namespace sm90 {

struct NoStagedTables {
    static constexpr int kProducers = 0; // threads
    static __device__ void initialise(const Shared&) {}
    static __device__ void produce(const AttentionArguments&, const mod::Arguments&,
                                   const Shared&) {}
    // Called by consumers: wait() at a tile of queries, release() after its last logits. A
    // warpgroup that skips the tile calls release() alone.
    __device__ unsigned wait(const Shared&) const { return 0; }
    __device__ void release(const Shared&) {}
};

#ifdef FLEXC_HAS_TABLES

// A slice of a table: its entries in the order of the dims, those of the last one side by side.
template <int kTable> class TableSlice {
    using Read = mod::StagedTable<kTable>;
    using Element = typename Read::Element;
    static constexpr int kDims = Read::kDims;

  public:
    explicit __device__ TableSlice(const mod::At& at)
        : count_(static_cast<int>(Read::count(at))), corner_(Read::data(at)) {
        Read::slice(at, first_, entries_);
        Read::buffer(at, extents_, strides_);
        long long next = 0; // the step of the dim before, where entries are evenly spaced
#pragma unroll
        for (int d = kDims - 1; d >= 0; --d) {
            is_whole_ = is_whole_ && first_[d] >= 0 && first_[d] + entries_[d] <= extents_[d];
            corner_ += first_[d] * strides_[d];
            if (entries_[d] == 1) continue;
            if (next == 0)
                step_ = strides_[d];
            else
                is_even_ = is_even_ && strides_[d] == next;
            next = strides_[d] * entries_[d];
        }
    }

    // Called by each of `threads` threads: copies its words of the slice to `to`. They are there
    // when wait_for_copies() has returned.
    __device__ void copy(unsigned to, int thread, int threads) const {
        if (is_whole_ && is_even_) {
            const Element* from = corner_ + thread * step_;
            const long long more = threads * step_;
#pragma unroll 4
            for (int place = thread; place < count_; place += threads) {
                copy_entry(to + 4 * place, from);
                from += more;
            }
        } else {
#pragma unroll 1
            for (int place = thread; place < count_; place += threads)
                copy_entry(to + 4 * place, address(place));
        }
    }

  private:
    // Returns the address of an entry of the slice; null outside of the buffer.
    __device__ const Element* address(int place) const {
        const Element* at = corner_;
        bool inside = true;
#pragma unroll
        for (int d = kDims - 1; d >= 0; --d) {
            const int rest = place / entries_[d], index = place - rest * entries_[d];
            place = rest;
            inside = inside && flexc_inside(first_[d] + index, extents_[d]);
            at += index * strides_[d];
        }
        return inside ? at : nullptr;
    }
    static __device__ void copy_entry(unsigned to, const float* from) {
        if (from != nullptr)
            copy_word_async(to, from);
        else
            store_shared_word(to, 0);
    }
    template <typename E> static __device__ void copy_entry(unsigned to, const E* from) {
        store_shared_word(to, from == nullptr ? 0 : __float_as_uint(flexc_read(from)));
    }

    int count_;
    const Element* corner_; // of the slice's first entry
    long long first_[kDims], extents_[kDims], strides_[kDims], step_ = 0;
    int entries_[kDims];
    bool is_whole_ = true, is_even_ = true; // inside of the buffer; step_ apart
};

// Multiplies words of a slice by a factor. Called by the threads that copied them.
__device__ inline void multiply_words(unsigned words, int count, float factor, int thread) {
#pragma unroll 1
    for (int place = thread; place < count; place += kTableThreads) {
        const float entry = __uint_as_float(load_shared_word(words + 4 * place));
        store_shared_word(words + 4 * place, __float_as_uint(multiply_finite(entry, factor)));
    }
}

// Copies the slices of all tables, but for those that are the same for the head (b, h) that the
// stage has. unit: what entries are multiplied by, where slices are in the units of products.
__device__ inline void copy_tables(const mod::At& at, bool is_first, int b, int h, unsigned to,
                                   float unit, int thread) {
    const auto visit_others = [&](auto visit) {
        static_for<mod::StagedTables::kCount>([&](auto table) {
            using Read = mod::StagedTable<decltype(table)::kValue>;
            if (is_first || (Read::kUsesBatch && b != at.b) || (Read::kUsesHead && h != at.h))
                visit(table, to + Read::kOffset);
        });
    };
    visit_others([&](auto table, unsigned words) {
        TableSlice<decltype(table)::kValue>(at).copy(words, thread, kTableThreads);
    });
    wait_for_copies();
    if constexpr (kScalesTables)
        visit_others([&](auto table, unsigned words) {
            const auto count = mod::StagedTable<decltype(table)::kValue>::count(at);
            multiply_words(words, static_cast<int>(count), unit, thread);
        });
}

// Copies the slices of all tables, where they have room.
struct TableSlices {
    static __device__ void copy(const mod::At& at, const HeadPlace&, bool is_first, int b, int h,
                                unsigned to, float per_product, int thread) {
        if (tables_have_room(at)) copy_tables(at, is_first, b, h, to, per_product, thread);
    }
};

// Stages of what Slices copies of a head.
template <typename Slices> class StagedSlices : public NoStagedTables {
  public:
    static constexpr int kProducers = kTableThreads;
    static __device__ void initialise(const Shared& shared) {
        shared.tables.initialise(kTableThreads, kConsumerThreads);
    }
    static __device__ void produce(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const Shared& shared) {
        const int thread = static_cast<int>(threadIdx.x) - kFirstTableThread;
        if (thread < 0 || thread >= kTableThreads) return;
        constexpr int kNone = -1;
        int b[2] = {kNone, kNone}, h[2] = {kNone, kNone}; // whose slices each stage has
        Position<TableRing> slot;
        visit_tasks(attention, arguments, shared, [&](const Task& task, const HeadPlace& place) {
            shared.tables.empty(slot.stage).wait(slot.parity ^ 1);
            const int old_b = slot.stage == 0 ? b[0] : b[1], old_h = slot.stage == 0 ? h[0] : h[1];
            visit_element(attention, arguments, place, 0, 0, [&](const mod::At& at) {
                Slices::copy(at, place, old_b == kNone, old_b, old_h, shared.tables.at(slot.stage),
                             1 / attention.scale, thread);
            });
            (slot.stage == 0 ? b[0] : b[1]) = task.b;
            (slot.stage == 0 ? h[0] : h[1]) = task.h;
            shared.tables.full(slot.stage).arrive();
            slot.advance();
        });
    }

    __device__ unsigned wait(const Shared& shared) const {
        shared.tables.full(slot_.stage).wait(slot_.parity);
        return shared.tables.at(slot_.stage);
    }
    __device__ void release(const Shared& shared) {
        shared.tables.empty(slot_.stage).arrive();
        slot_.advance();
    }

  private:
    Position<TableRing> slot_;
};

#endif

} // namespace sm90
