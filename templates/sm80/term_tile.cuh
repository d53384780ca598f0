// Gradients of the terms of sums (common/term_sums.cuh) of a warp's rectangle of a tile. Thread
// 4 g + t holds columns 2t and 2t + 1 of row g, as in sm80/line_sums.cuh.
#pragma once

#include "common/carried_values.cuh"
#include "common/term_sums.cuh"
#include "sm80/backward_tiles.cuh"

namespace sm80 {

// A thread's elements of a warp's rectangle: d loss / d (modified score), and what enters terms.
template <typename Scores, bool kExist = mod::TermSums::kExist> class TermElements {
  public:
    __device__ void keep(int, int, const mod::Joint&, float) {}
};
template <typename Scores>
class TermElements<Scores, true>
    : public CarriedValues<mod::TermSums::kCarried, Scores::kRows * 2 * Scores::kColumns> {
    static constexpr int kCount = Scores::kRows * 2 * Scores::kColumns;
    using Values = CarriedValues<mod::TermSums::kCarried, kCount>;

  public:
    static constexpr __device__ int index(int row, int column) {
        return row * 2 * Scores::kColumns + column;
    }
    // d_modified: 0 if the element is hidden. Joint: a joint value may carry nothing.
    template <typename Joint>
    __device__ void keep(int row, int column, const Joint& joint, float d_modified) {
        if constexpr (mod::TermSums::kCarried > 0) Values::keep(index(row, column), joint.carried);
        d_modified_[index(row, column)] = d_modified;
    }
    __device__ float d_modified(int i) const { return d_modified_[i]; }

  private:
    float d_modified_[kCount];
};

// The keys of a warp's rectangle, and where it keeps their sums: at `memory`, a warp after another.
template <typename Scores> class TermKeys {
  public:
    static constexpr int kKeys = 2 * Scores::kColumns, kQueries = Scores::kRows;
    static constexpr int kWarpKeys = kTermKeys;
    static_assert(16 * Scores::kUnits <= kWarpKeys);

    __device__ TermKeys(const Surroundings& around, int first_kv, unsigned memory)
        : around_(around), first_key_(first_kv + Scores::first_column()), memory_(memory) {}

    __device__ mod::At at_head() const { return at(no_row_, no_column_, 0, 0); }
    __device__ unsigned word_address(int word) const {
        return memory_ + 4 * (Scores::warp() * mod::TermSums::kWords + word);
    }
    // Each of a warp's keys has a lane.
    template <typename Visit> __device__ void visit_warp_keys(Visit visit_key) const {
        const int key = lane_index();
        if (key >= 16 * Scores::kUnits || first_key_ + key >= around_.length.keys()) return;
        const mod::Column column = column_at(first_key_ + key);
        visit_key(key, at(no_row_, column, 0, around_.length.kv_idx(first_key_ + key)), 0, 1);
    }

  protected:
    __device__ mod::At at(const mod::Row& row, const mod::Column& column, int q, int kv) const {
        const auto& [attention, arguments, place, length] = around_;
        return {arguments, place.launch, place.head, row,  column,
                place.b,   place.h,      place.h_kv, q,    kv};
    }
    // Positions past the end are those of the last one.
    __device__ mod::Column column_at(int position) const {
        const auto& [attention, arguments, place, length] = around_;
        return mod::at_column(arguments, place.launch, place.head, place.b, place.h, place.h_kv,
                              length.kv_idx(position));
    }

    const Surroundings& around_;
    const int first_key_; // of the rectangle
    mod::Row no_row_{};

  private:
    const unsigned memory_;
    mod::Column no_column_{};
};

// The rectangle with its elements. What the program computes for its rows and columns is kept in
// registers from term to term.
template <typename Scores> class TermTile : public TermKeys<Scores> {
    using Keys = TermKeys<Scores>;

  public:
    using Keys::kKeys, Keys::kQueries;
    static constexpr int kSlots = TermElements<Scores>::kSlots;

    __device__ TermTile(const TermElements<Scores>& elements, const Surroundings& around,
                        int first_q, int first_kv, unsigned memory)
        : Keys(around, first_kv, memory), elements_(elements),
          first_query_(first_q + Scores::first_row()) {
        const auto& [attention, arguments, place, length] = around;
#pragma unroll
        for (int i = 0; i < kQueries; ++i)
            rows_[i] = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                   place.h_kv, length.q_idx(query(i)));
#pragma unroll
        for (int i = 0; i < kKeys; ++i)
            columns_[i] = this->column_at(key(i));
    }

    template <typename Visit> __device__ void visit_elements(Visit visit_element) const {
#pragma unroll
        for (int i = 0; i < kQueries; ++i)
#pragma unroll
            for (int j = 0; j < kKeys; ++j)
                visit_element(j, i, TermElements<Scores>::index(i, j), at(i, j));
    }
    __device__ float d_modified(int i) const { return elements_.d_modified(i); }
    __device__ void load(int i, float (&carried)[kSlots]) const { elements_.load(i, carried); }

    // A key's rows are in 8 lanes, a query's columns in 4.
    template <typename Visit>
    __device__ void visit_key_sums(float (&sums)[kKeys], Visit visit_sum) const {
        visit_line_sums<kKeys, 16, 4>(sums, [&](int i, float sum) {
            const int position = key(i);
            if (position >= this->around_.length.keys()) return;
            const mod::Column column = this->column_at(position);
            visit_sum(position - this->first_key_,
                      Keys::at(this->no_row_, column, 0, this->around_.length.kv_idx(position)),
                      sum);
        });
    }
    template <typename Visit>
    __device__ void visit_query_sums(float (&sums)[kQueries], Visit visit_sum) const {
        visit_line_sums<kQueries, 2, 1>(sums, [&](int i, float sum) {
            const int position = query(i);
            if (position >= this->around_.length.queries()) return;
            const auto& [attention, arguments, place, length] = this->around_;
            const int q = length.q_idx(position);
            const mod::Row row = mod::at_row(arguments, place.launch, place.head, place.b, place.h,
                                             place.h_kv, q);
            visit_sum(Keys::at(row, mod::Column{}, q, 0), sum);
        });
    }

  private:
    __device__ int query(int i) const { return first_query_ + 8 * i + lane_index() / 4; }
    __device__ int key(int i) const {
        return this->first_key_ + i / 2 * 8 + lane_index() % 4 * 2 + i % 2;
    }
    __device__ mod::At at(int i, int j) const {
        const SequenceLength& length = this->around_.length;
        return Keys::at(rows_[i], columns_[j], length.q_idx(query(i)), length.kv_idx(key(j)));
    }
    // Sums the values of each of a thread's lines over its lanes, which are at distances kDistance
    // to kLeast. Calls visit(line of the thread, sum) in one lane for each line.
    template <int kLines, int kDistance, int kLeast, typename Visit>
    static __device__ void visit_line_sums(float (&sums)[kLines], Visit visit_sum) {
        constexpr int kLanes = 2 * kDistance / kLeast;
        static_assert((kLines & (kLines - 1)) == 0);
        const int first = sum_over_lanes<kLines, kDistance, kLeast>(sums, lane_index());
        // Of lanes with the same sum, the first.
        if (kLines < kLanes && lane_index() / kLeast % (kLanes / kLines) != 0) return;
#pragma unroll
        for (int i = 0; i < (kLines > kLanes ? kLines / kLanes : 1); ++i)
            visit_sum(first + i, sums[i]);
    }

    const TermElements<Scores>& elements_;
    const int first_query_;
    mod::Row rows_[kQueries];
    mod::Column columns_[kKeys];
};

// What a kernel does with them: nothing without such gradients. memory: of the warps' sums.
template <typename Scores> __device__ inline void clear_terms(const Surroundings& around,
                                                              unsigned memory) {
    if constexpr (mod::TermSums::kWords > 0) {
        using Keys = TermKeys<Scores>;
        TermWords<Keys>::clear(Keys(around, 0, memory));
    }
}
template <typename Scores>
__device__ inline void sum_terms(const TermElements<Scores>& elements, const Surroundings& around,
                                 int first_q, int first_kv, unsigned memory) {
    if constexpr (mod::TermSums::kExist)
        sum_terms_of(
            TermTile<Scores>(elements, around, first_q, computed_again(first_kv), memory));
}
template <typename Scores>
__device__ inline void flush_terms(const Surroundings& around, int first_kv, unsigned memory) {
    if constexpr (mod::TermSums::kWords > 0)
        flush_terms_of(TermKeys<Scores>(around, first_kv, memory));
}

} // namespace sm80
