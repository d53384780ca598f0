// Addends by rows of the 2-D key index: one number for each query and each row that a tile of keys
// has. Threads beside the producer compute the numbers and stage them in shared memory, as floats
// that consumers read or as operands that MMAs read.
#pragma once

#include "common/select.h"
#include "sm90/addend_parts.cuh"
#include "sm90/forward_key_blocks.cuh"
#include "sm90/forward_tasks.cuh"
#include "sm90/key_width.cuh"
#include "sm90/logits.cuh"
#include "sm90/tma.cuh"

namespace sm90 {

struct NoIndex2dRows {
    static __device__ void store_addend(unsigned, float) {}
    static __device__ void publish() {}
    static constexpr int kProducers = 0;         // threads
    static constexpr int kProducersWithKeys = 0; // those of them that arrive where keys do
    static __device__ void initialise(const Shared&) {}
    static __device__ void produce(const AttentionArguments&, const mod::Arguments&,
                                   const Shared&) {}

    __device__ NoIndex2dRows(const Shared&, const ConsumerThread&) {}
    // Called by consumers after logits.prepare().
    __device__ void load(Logits&, const Shared&, const ConsumerThread&) {}
};

class MultipliedIndex2dRows;
class LoadedIndex2dRows;

#ifdef FLEXC_HAS_OPERANDS

// Store the operands whose product is what rows of the 2-D key index add to products: for each
// query the parts of its number, h, and for all keys those of half of 1 / scale, u, in the order of
// their columns h1 u1, h1 u2, h1 u3, h2 u1, h2 u2, h3 u1.
__device__ inline void store_index_2d_row(unsigned to, float addend) {
    const Parts h(addend);
    store_shared(to, static_cast<int>(h.high | h.high >> 16),
                 static_cast<int>(h.middle | h.high >> 16),
                 static_cast<int>(h.low | h.middle >> 16), 0);
}
__device__ inline void store_index_2d_unit(unsigned to, float scale) {
    Parts u(0.5f / scale);
    // No part of the unit may be 0, since an infinite addend times 0 is NaN.
    constexpr unsigned kLeast = 0x00800000u;
    u.middle = max(u.middle, kLeast);
    u.low = max(u.low, kLeast);
    store_shared(to, static_cast<int>(u.middle | u.high >> 16),
                 static_cast<int>(u.high | u.low >> 16), static_cast<int>(u.high | u.middle >> 16),
                 0);
}

// One thread's queries of a tile, from `first` on every kIndex2dThreads-th: what depends on them
// alone is computed once for all tiles of keys.
struct Index2dQueries {
    static constexpr int kCount = mod::kQueryTile / kIndex2dThreads;
    int q[kCount];
    mod::Row row[kCount];

    __device__ Index2dQueries(const AttentionArguments& attention, const mod::Arguments& arguments,
                              const HeadPlace& place, int first) {
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
            q[i] = min(first + i * kIndex2dThreads, attention.q_len - 1) +
                   static_cast<int>(attention.q_offset);
            row[i] = mod::at_row(arguments, place.launch, place.head, place.b, place.h, place.h_kv,
                                 q[i]);
        }
    }
    // Stores what is added for the rows of the 2-D key index from first_key on, by row, then by
    // query, in the form of this feature. to: place in shared memory, which is free after wait().
    template <typename Feature, typename Wait>
    __device__ void store(const AttentionArguments& attention, const mod::Arguments& arguments,
                          const HeadPlace& place, int first_key, unsigned to, Wait wait) const {
        // Number of rows that are read before wait().
        constexpr int kAhead = kIndex2dRows == 0 ? 1 : kIndex2dRows < 4 ? kIndex2dRows : 4;
#pragma unroll 1
        for (int first = 0; first < kIndex2dRows; first += kAhead) {
            const auto is_there = [&](int i) {
                return kIndex2dRows % kAhead == 0 || first + i < kIndex2dRows;
            };
            float addends[kAhead][kCount];
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
                if (is_there(i))
                    find(attention, arguments, place, first_key + (first + i) * kKeyWidth,
                         addends[i]);
            wait();
#pragma unroll
            for (int i = 0; i < kAhead; ++i)
#pragma unroll
                for (int k = 0; k < kCount; ++k)
                    if (is_there(i))
                        Feature::store_addend(
                            to + kIndex2dRowBytes *
                                     ((first + i) * mod::kQueryTile + k * kIndex2dThreads),
                            addends[i][k]);
        }
    }

  private:
    // Finds what is added for the row of the 2-D key index that this key is in.
    __device__ void find(const AttentionArguments& attention, const mod::Arguments& arguments,
                         const HeadPlace& place, int key, float (&addends)[kCount]) const {
        // Later rows of a tile may be past the end.
        const int inside = kIndex2dRows == 1 ? key : min(key, attention.kv_len - 1);
        const int kv = inside + static_cast<int>(attention.kv_offset);
        __builtin_assume(kv >= 0);
        const mod::Column column =
            mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv, kv);
#pragma unroll
        for (int i = 0; i < kCount; ++i)
            addends[i] =
                mod::quotient_addend(mod::At{arguments, place.launch, place.head, row[i], column,
                                             place.b, place.h, place.h_kv, q[i], kv});
    }
};

constexpr int kFirstIndex2dThread = 128 - kIndex2dThreads; // in the producer warpgroup

// Called by the threads that stage rows. ring: says when stages are full and empty, one of its own
// or that of the keys.
template <typename Feature, typename Ring>
__device__ inline void stage_index_2d_rows(const AttentionArguments& attention,
                                           const mod::Arguments& arguments, const Shared& shared,
                                           const Ring& ring, int thread) {
    Position<Index2dRing> position;
    visit_tasks(attention, arguments, shared, [&](const Task& task, const HeadPlace& place) {
        const Index2dQueries queries(attention, arguments, place, task.first_row + thread);
        const auto stage_rows = [&](int block) {
            queries.template store<Feature>(
                attention, arguments, place, block * mod::kKeyTile,
                shared.index_2d_rows.at(position.stage) + kIndex2dRowBytes * thread,
                [&] { ring.empty(position.stage).wait(position.parity ^ 1); });
            Feature::publish();
            ring.full(position.stage).arrive();
            position.advance();
        };
        KeyBlocks::visit(attention, task, stage_rows);
    });
}

// Addends are staged as floats, which consumers add to logits.
class LoadedIndex2dRows : public NoIndex2dRows {
  public:
    using NoIndex2dRows::NoIndex2dRows;
    static constexpr int kProducers = kIndex2dThreads;
    static __device__ void store_addend(unsigned to, float addend) {
        store_shared_word(to, __float_as_uint(addend));
    }
    static __device__ void initialise(const Shared& shared) {
        shared.index_2d_rows.initialise(kIndex2dThreads, kConsumerThreads);
    }
    static __device__ void produce(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const Shared& shared) {
        if (threadIdx.x >= kFirstIndex2dThread)
            stage_index_2d_rows<LoadedIndex2dRows>(
                attention, arguments, shared, shared.index_2d_rows,
                static_cast<int>(threadIdx.x) - kFirstIndex2dThread);
    }

    __device__ void load(Logits& logits, const Shared& shared, const ConsumerThread& thread) {
        shared.index_2d_rows.full(rows_.stage).wait(rows_.parity);
        logits.load_index_2d_rows(shared.index_2d_rows.at(rows_.stage) + 4 * thread.first_row());
        shared.index_2d_rows.empty(rows_.stage).arrive();
        rows_.advance();
    }

  private:
    Position<Index2dRing> rows_;
};

// Addends are staged as operands: the MMAs of QK have eight more columns to sum over. Stages are
// full and empty with the keys.
class MultipliedIndex2dRows : public NoIndex2dRows {
  public:
    using NoIndex2dRows::NoIndex2dRows;
    static constexpr int kProducers = kIndex2dThreads, kProducersWithKeys = kIndex2dThreads;
    static __device__ void store_addend(unsigned to, float addend) {
        store_index_2d_row(to, addend);
    }
    static __device__ void publish() { publish_shared(); } // to MMAs
    static __device__ void produce(const AttentionArguments& attention,
                                   const mod::Arguments& arguments, const Shared& shared) {
        if (threadIdx.x >= kFirstIndex2dThread)
            stage_index_2d_rows<MultipliedIndex2dRows>(attention, arguments, shared, shared.keys,
                                                       static_cast<int>(threadIdx.x) -
                                                           kFirstIndex2dThread);
    }
};

// The operands of a consumer warpgroup: addends of queries, and the unit of keys.
class Index2dStep : public NoAddendStep {
  public:
    // Stores what all addends are multiplied with, for eight keys: eight threads store one each.
    static __device__ void store_unit(const AttentionArguments& attention, const Shared& shared) {
        if (threadIdx.x >= 8) return;
        store_index_2d_unit(shared.unit + kIndex2dRowBytes * threadIdx.x, attention.scale);
        publish_shared();
    }

    __device__ Index2dStep(const Shared& shared, const ConsumerThread& thread)
        : NoAddendStep(shared, thread),
          rows_(
              held_operand(shared.index_2d_rows.at(0) + 64 * thread.warpgroup * kIndex2dRowBytes)),
          unit_(held_operand(shared.unit)) {}
    __device__ unsigned of_queries(int stage) const {
        return rows_ + stage * (Index2dRing::kBytes >> 4);
    }
    __device__ unsigned of_keys(int) const { return unit_; }

  private:
    unsigned rows_, unit_; // of the warpgroup's queries in the first stage
};

#endif

using Index2dRows =
    Select<kIndex2dRows == 0, NoIndex2dRows,
           Select<kMultipliesIndex2dRows, MultipliedIndex2dRows, LoadedIndex2dRows>>;

} // namespace sm90
