// What a thread of the forward kernel keeps of the indices of its reads from tables in shared
// memory, to find out whether all that a tile reads is inside of the slices.
#pragma once

#include "common/select.h"
#include "mod.cuh"

namespace sm90 {

#ifdef FLEXC_HAS_TABLES

// For tables whose indices are inside of the slice for every element.
template <int kTable> struct NoCheckedIndices {
    static __device__ bool add_row(const mod::At&) { return true; }
    static __device__ void reduce(const mod::At&) {}
    static __device__ bool hold(const mod::At&) { return true; }
    static __device__ bool holds_tile(const mod::At&) { return true; }
};
// Indices that are a number of the query plus one of the key: keeps what queries of the warp give,
// and after reduce() the range of the keys' numbers with which all indices are inside of the slice.
template <int kTable> class CheckedIndices {
    using Read = mod::StagedTable<kTable>;
    static constexpr int kIndices = Read::kCheckedIndices;

  public:
    __device__ CheckedIndices() {
#pragma unroll
        for (int i = 0; i < kIndices; ++i) {
            least_[i] = 0x7fffffff;
            most_[i] = -0x7fffffff - 1;
        }
    }

    // Adds a row. Returns whether its indices that use no key are inside.
    __device__ bool add_row(const mod::At& at) {
        int of_query[kIndices], entries[kIndices];
        Read::of_query(at, of_query);
        Read::entries_of_checked(at, entries);
        bool inside = true;
#pragma unroll
        for (int i = 0; i < kIndices; ++i) {
            if (!Read::uses_key(i)) inside = inside && flexc_inside(of_query[i], entries[i]);
            least_[i] = min(least_[i], of_query[i]);
            most_[i] = max(most_[i], of_query[i]);
        }
        return inside;
    }
    __device__ void reduce(const mod::At& at) {
        int entries[kIndices];
        Read::entries_of_checked(at, entries);
#pragma unroll
        for (int i = 0; i < kIndices; ++i) {
            const bool is_of_both = Read::uses_query(i) && Read::uses_key(i);
            const long long least = is_of_both ? __reduce_min_sync(0xffffffffu, least_[i]) : 0;
            const long long most = is_of_both ? __reduce_max_sync(0xffffffffu, most_[i]) : 0;
            least_[i] = bounded(-least);
            most_[i] = bounded(entries[i] - 1 - most);
        }
    }
    __device__ bool hold(const mod::At& at) const {
        return hold_from(at, [](int) { return 0; }, [](int) { return 0; });
    }

    // Returns whether indices of all keys of an aligned tile are inside. at: has its first key.
    __device__ bool holds_tile(const mod::At& at) const {
        return hold_from(
            at, [](int i) { return Read::least_reach(i); },
            [](int i) { return Read::most_reach(i); });
    }

  private:
    // Returns whether indices are inside for keys whose numbers are `least` to `most` more than
    // those of this one.
    template <typename Least, typename Most>
    __device__ bool hold_from(const mod::At& at, Least least, Most most) const {
        int of_key[kIndices];
        Read::of_key(at, of_key);
        bool inside = true;
#pragma unroll
        for (int i = 0; i < kIndices; ++i)
            if (Read::uses_key(i))
                inside = inside & (of_key[i] + least(i) >= least_[i]) &
                         (of_key[i] + most(i) <= most_[i]);
        return inside;
    }
    // Clamps to 32 bits, since numbers that come from buffers may be as large as their type allows.
    static __device__ int bounded(long long x) {
        return static_cast<int>(flexc_min(flexc_max(x, -0x80000000ll), 0x7fffffffll));
    }

    int least_[kIndices], most_[kIndices];
};

// The indices of all tables from kTable on; visit() is called with those of each.
template <int kTable> class IndicesFrom {
  public:
    template <typename Visit> __device__ void visit(Visit visit_table) {
        visit_table(own_);
        rest_.visit(visit_table);
    }

  private:
    Select<mod::StagedTable<kTable>::kCheckedIndices != 0, CheckedIndices<kTable>,
           NoCheckedIndices<kTable>>
        own_;
    IndicesFrom<kTable + 1> rest_;
};
template <> class IndicesFrom<mod::StagedTables::kCount> {
  public:
    template <typename Visit> static __device__ void visit(Visit) {}
};

#endif

} // namespace sm90
