// Gradients of tables of few entries of which each element computes its own: consumer threads add
// their elements' dS to copies of all entries, which the block's warps share, while products for dq
// and dk run.
//
// The copies are sums of whole numbers. Their unit follows from a bound on the magnitudes that a
// tile adds, which warps give each other before the barrier that dS has anyway. Sums stay from tile
// to tile, until the bounds of their tiles do not exclude an overflow or are of other magnitudes.
#pragma once

#include "common/fixed_point.cuh"
#include "common/select.h"
#include "common/static_for.cuh"
#include "common/table_sums.cuh"
#include "sm90/backward_fragments.cuh"
#include "sm90/gradients/sum.cuh"

namespace sm90 {

using mod::TableGradients;

// The numbers of entries among those of all tables, and how many copies there are, if the program's
// text has all extents.
struct KnownEntries {
    static constexpr int kFirst = 0, kNone = TableGradients::kEntries; // kNone: that of no entry

    explicit __device__ KnownEntries(const mod::At&) {}
    template <int kTable> static constexpr __device__ int count() {
        return mod::TableGradient<kTable>::kEntries;
    }
    // The number of a table's first entry.
    template <int kTable> static constexpr __device__ int first() {
        if constexpr (kTable == 0)
            return kFirst;
        else
            return first<kTable - 1>() + count<kTable - 1>();
    }
    static constexpr __device__ int copy_shift() { return TableGradients::kCopyShift; }
};
// The same if a call binds some extents: as many copies as there is room for, up to one for each
// lane.
class BoundEntries {
    static constexpr int kRoom = TableGradients::kEntries + 1, kMostShift = 5;

  public:
    static constexpr int kFirst = 1, kNone = 0;

    explicit __device__ BoundEntries(const mod::At& at) : at_(at) {}
    template <int kTable> __device__ int count() const {
        using Read = mod::TableGradient<kTable>;
        int extents[Read::kDims], entries = 1;
        Read::extents(at_, extents);
#pragma unroll
        for (const int extent : extents)
            entries *= extent;
        return entries;
    }
    template <int kTable> __device__ int first() const {
        if constexpr (kTable == 0)
            return kFirst;
        else
            return first<kTable - 1>() + count<kTable - 1>();
    }
    __device__ int copy_shift() const {
        const int end = first<TableGradients::kCount>();
        const int shift = min(__clz(end) - __clz(kRoom), kMostShift);
        return end << shift <= kRoom ? shift : shift - 1;
    }

  private:
    const mod::At& at_;
};
using EntryNumbers = Select<TableGradients::kEntriesAreBound, BoundEntries, KnownEntries>;

// Returns the number of the entry to which an element adds.
template <int kTable> __device__ inline unsigned entry_of(const mod::At& at) {
    using Read = mod::TableGradient<kTable>;
    int index[Read::kDims], extents[Read::kDims];
    Read::extents(at, extents);
    bool adds = true;
    int entry = 0;
    if constexpr (Read::kIsSeparable) {
        Read::indices(at, index);
    } else {
        const typename Read::QueryParts of_query = Read::of_query(at);
        const typename Read::KeyParts of_key = Read::of_key(at);
        Read::indices(at, of_query, of_key, index);
        adds = Read::applies(at, of_query, of_key);
    }
#pragma unroll
    for (int d = 0; d < Read::kDims; ++d) {
        bool is_inside = false;
        if constexpr (!Read::kIsSeparable) is_inside = Read::is_inside(d);
        adds = adds && (is_inside || flexc_inside(index[d], extents[d]));
        entry = entry * extents[d] + index[d];
    }
    const EntryNumbers numbers(at);
    // Positions past the end may have an index that no query or key has.
    if constexpr (!mod::ScoreDerivative::kReadsElements)
        adds = adds && entry < numbers.template count<kTable>() && entry >= 0;
    return adds ? numbers.template first<kTable>() + entry : EntryNumbers::kNone;
}

// Sums of one query head. A template, because most programs have no such table.
template <int kTables> class SharedEntries {
    static constexpr int kWarps = 4 * kConsumers, kThreads = 32 * kWarps;
    // The largest f16 is the least that dS may be.
    static constexpr float kMostNorm = 0x1p15F;
    using Unit = FixedPoint<31>;

  public:
    static __device__ void clear(const Shared& shared) {
        for (int i = thread(); i < kShape.entry_words; i += kThreads)
            store_shared_word(words(shared) + 4 * i, 0);
    }

    // Keeps which entries the element of a key and the thread's j-th query adds to; queries come in
    // order.
    __device__ void keep(const mod::At& at, float d_score, int key, int j) {
        norm_ += fabsf(d_score);
        static_for<kTables>([&](auto table) {
            constexpr int kTable = decltype(table)::kValue;
            const unsigned entry = entry_of<kTable>(at);
            if (j % 2 == 0)
                even_[kTable][key] = entry;
            else
                entries_[kTable][accumulator(key, j) / 2] = even_[kTable][key] | entry << 16;
        });
    }
    // Called before the barrier of dS: gives the other warps the largest sum of magnitudes of a
    // thread.
    __device__ void publish(const Shared& shared, unsigned step) {
        const unsigned most = __reduce_max_sync(0xffffffffu, __float_as_uint(norm_));
        norm_ = 0;
        if (thread() % 32 == 0) store_shared_word(norms(shared, step) + thread() / 32 * 4, most);
    }
    // Called behind it: adds the elements that were kept.
    template <typename Elements>
    __device__ void add(const Shared& shared, unsigned step, const Fragments& d_scores,
                        const Elements& elements) {
        float most = 0, sum = 0;
#pragma unroll
        for (int i = 0; i < kWarps; i += 4) {
            int of[4];
            load_shared(norms(shared, step) + 4 * i, of[0], of[1], of[2], of[3]);
#pragma unroll
            for (const int bits : of) {
                most = larger(most, __int_as_float(bits));
                sum += __int_as_float(bits);
            }
        }
        if (most == 0) return;
        if (!(most <= kMostNorm)) {
            add_to_memory(d_scores, elements);
            return;
        }
        const mod::At head = elements.at_key(mod::Row{}, 0);
        const int shift = EntryNumbers(head).copy_shift();
        use_unit(shared, (32 >> shift) * sum, most, elements);
        const Unit unit(limit_);
        const unsigned copy = words(shared) + 4 * (thread() % 32 >> (5 - shift));
        visit(d_scores, [&](auto, unsigned entry, float d_score) {
            add_shared(copy + entry * (4u << shift), unit(d_score));
        });
    }
    // Adds what is left to memory after the queries of a head.
    template <typename Elements>
    __device__ void flush(const Shared& shared, const Elements& elements) {
        if (limit_ == 0) return;
        synchronize(kEntriesBarrier, kThreads);
        add_sums(shared, elements);
        limit_ = 0;
    }

  private:
    static __device__ int thread() { return static_cast<int>(threadIdx.x) - 128; }
    static __device__ float larger(float x, float y) { return y <= x ? x : y; } // NaN if y is
    static __device__ unsigned words(const Shared& shared) { return shared.base + kLayout.tables; }
    static __device__ unsigned norms(const Shared& shared, unsigned step) {
        return words(shared) + kShape.entry_bytes() - (1 + step % 2) * kWarps * 4;
    }

    // Decides the unit of a tile of which a copy of an entry gets `bound` at most, and no element
    // is larger than `most`.
    template <typename Elements>
    __device__ void use_unit(const Shared& shared, float bound, float most,
                             const Elements& elements) {
        // There is room for a few tiles like this one. Unit rounds 22 bits and a sign by an
        // addition; what is rounded may be a little larger. A much smaller tile has a smaller unit.
        constexpr float kTiles = 4, kMostParts = 520, kSmaller = 8;
        const float limit = fmaxf(kTiles * bound, kMostParts * most);
        const bool is_same = used_ + bound <= limit_ && kMostParts * most <= limit_ &&
                             kSmaller * limit >= limit_;
        if (!is_same) {
            if (limit_ != 0) {
                add_sums(shared, elements);
                synchronize(kEntriesBarrier, kThreads);
            }
            limit_ = limit;
            used_ = 0;
        }
        used_ += bound;
    }

    // Calls visit_element(table, entry, dS) for each element and table.
    template <typename Visit>
    __device__ void visit(const Fragments& d_scores, Visit visit_element) const {
#pragma unroll
        for (int i = 0; i < kQueries; ++i) {
            const unsigned pair = d_scores[i / 4][i % 4];
            const float first = flexc_first(mod::Element{}, pair),
                        second = flexc_second(mod::Element{}, pair);
            static_for<kTables>([&](auto table) {
                const unsigned entries = entries_[decltype(table)::kValue][i];
                visit_element(table, entries & 0xffffu, first);
                visit_element(table, entries >> 16, second);
            });
        }
    }

    // What TableEntries needs.
    template <typename Elements> struct Head {
        const Elements& elements;
        template <typename Visit> __device__ void visit(int, int, Visit visit_at) const {
            visit_at(elements.at_key(mod::Row{}, 0));
        }
    };
    template <typename Elements>
    __device__ void add_to_memory(const Fragments& d_scores, const Elements& elements) const {
        const mod::At head = elements.at_key(mod::Row{}, 0);
        const EntryNumbers numbers(head);
        visit(d_scores, [&](auto table, unsigned entry, float d_score) {
            constexpr int kTable = decltype(table)::kValue;
            const TableEntries<kTable> entries(Head<Elements>{elements});
            if (entry - EntryNumbers::kFirst < TableGradients::kEntries && d_score != 0 &&
                entries.exist())
                entries.add(
                    entries.index_of(static_cast<int>(entry) - numbers.template first<kTable>()),
                    d_score);
        });
    }
    // Adds sums to memory, and leaves zeros. Each entry is one thread's.
    template <typename Elements>
    __device__ void add_sums(const Shared& shared, const Elements& elements) const {
        const Unit unit(limit_);
        const mod::At head = elements.at_key(mod::Row{}, 0);
        const EntryNumbers numbers(head);
        const int shift = numbers.copy_shift();
        static_for<kTables>([&](auto table) {
            constexpr int kTable = decltype(table)::kValue;
            const TableEntries<kTable> entries(Head<Elements>{elements});
            const int count = numbers.template count<kTable>();
            const TableCopies copies = TableCopies::of_block(
                words(shared) + (numbers.template first<kTable>() << (2 + shift)), count, shift);
#pragma unroll 1
            for (int entry = thread(); entry < count; entry += kThreads) {
                const float sum = copies.take(entry, unit);
                if (sum != 0 && entries.exist()) entries.add(entries.index_of(entry), sum);
            }
        });
    }

    unsigned entries_[kTables][kQueries]; // of two queries each, as fragments
    unsigned even_[kTables][2];           // of the first of two queries
    float norm_ = 0;
    float limit_ = 0, used_ = 0; // of sums' magnitudes; 0 where nothing was added
};
struct NoEntries {
    static __device__ void clear(const Shared&) {}
    static __device__ void keep(const mod::At&, float, int, int) {}
    static __device__ void publish(const Shared&, unsigned) {}
    template <typename Elements>
    static __device__ void add(const Shared&, unsigned, const Fragments&, const Elements&) {}
    template <typename Elements> static __device__ void flush(const Shared&, const Elements&) {}
};
// A base, as WeightedTile is.
using Entries = Select<kSumsEntries, SharedEntries<TableGradients::kCount>, NoEntries>;

} // namespace sm90
